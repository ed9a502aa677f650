"""Shipped recipes and their Hydra config groups, as package data."""
