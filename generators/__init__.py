"""Generators: each runs many multi-turn episodes at once on one vLLM engine, token-in and token-out."""
