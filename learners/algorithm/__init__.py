"""The mathematics of the update as pure functions: advantages, corrections, losses, KL, credit."""
