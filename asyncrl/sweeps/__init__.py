"""Runs settings of a recipe beside each other with several seeds, and compares them: ``asyncrl sweep``."""
