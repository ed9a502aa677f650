"""Benchmark of a generator worker: what episodes cost beside the bare engine."""
