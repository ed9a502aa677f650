"""Programs for other trainers. The interpreter of the peers' environment runs them, so they import nothing of asyncrl."""
