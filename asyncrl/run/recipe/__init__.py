"""The recipe of a run: composed from files and overrides, and ``auto`` filled in."""
