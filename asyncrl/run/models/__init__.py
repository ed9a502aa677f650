"""Models as folders and hub names: their shape, weights, chat template, reference and reward models."""
