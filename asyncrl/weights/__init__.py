"""Weights from the learner to the engines: transports, fingerprints, checks, and how an engine loads a publication."""
