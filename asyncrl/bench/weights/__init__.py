"""Benchmark of publications: from the learner's ranks to an engine."""
