"""Benchmark of the replay buffer as a service."""
