"""Episodes as files: what a run keeps of what its policy did, and how it is read again."""
