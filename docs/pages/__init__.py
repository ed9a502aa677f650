"""Pages of the docs that are made from the code: the command line, what Python programs import, and the errors."""
