"""Benchmark of the learner beside a plain PyTorch loop."""
