"""Mathematics of the user's own in place of built-in: what it is given, how it is called, and what it is checked for."""
