"""Typed calls over TCP."""
