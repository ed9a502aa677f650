"""Tasks: the sources that a recipe names, and the endless stream drawn from them."""
