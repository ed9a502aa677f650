"""Weights in the memory of a node: what learner ranks write, and engines map."""
