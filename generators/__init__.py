"""Generators: one vLLM engine each, running many multi-turn episodes at once, token-in and token-out."""
