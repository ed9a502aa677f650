"""A run: composing the recipe, the actors, the two pumps, live view, tracking and report."""
