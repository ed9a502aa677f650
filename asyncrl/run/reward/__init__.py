"""Rewards of finished episodes that come from a model, here or behind a URL."""
