"""Evaluations outside a run: which model, which tasks, the result, and the export of a version."""
