"""Environments that other projects made, as ``asyncrl env serve --from`` serves them, where their packages are installed."""
