"""Training steps of a run computed again from its journal and checkpoints, without engines and without Ray."""
