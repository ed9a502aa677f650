"""Tools for people who write environments: begin one, check it, play it, score a model on it."""
