"""Predictions of runs before they are launched: rates from runs, files and probes, and what follows from them."""
