"""The ``disk`` transport: versioned folders on a file system that all nodes see."""
