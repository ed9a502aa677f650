"""The shipped recipes and their Hydra config groups, as package data."""
