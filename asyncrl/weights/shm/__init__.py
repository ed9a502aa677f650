"""The ``shm`` transport: weights in the memory of a node."""
