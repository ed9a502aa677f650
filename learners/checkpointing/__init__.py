"""Checkpoints of a run: the folder, the manifest, and the check before any process loads one."""
