"""Looks at agents before a run: what they ask for, and what training on them will cost."""
