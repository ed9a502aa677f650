"""Runs in object stores: what a run has uploads beside it, and how it is found and gone on with from there."""
