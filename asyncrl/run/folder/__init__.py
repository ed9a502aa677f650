"""The run folder: what lies where, and how it is written."""
