"""``asyncrl sweep``, and the process of each of its points."""
