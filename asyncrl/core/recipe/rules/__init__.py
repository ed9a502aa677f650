"""Rules between the keys of a recipe, one file for each section that has some."""
