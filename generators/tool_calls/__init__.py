"""Tool calls in what a model writes: the formats of model families, and reading a turn as content and calls."""
