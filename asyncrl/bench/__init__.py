"""Benchmarks of the whole loop and of its parts."""
