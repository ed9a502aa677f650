"""Weights from the learner to the engines: transports, fingerprints, and the order in which a version is published."""
