"""Weights from the learner to the engines: files, mirrors, fingerprints, checks, and how an engine loads a publication."""
