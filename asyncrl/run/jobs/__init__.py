"""Runs that need nobody: tried again when they fail, and given to a cluster as jobs."""
