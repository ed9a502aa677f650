"""The tiny model of a run: its lessons, who plays them, and its warm-up."""
