"""Benchmark of the whole loop, on several workloads, beside a peer."""
