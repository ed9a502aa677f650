"""How a worker runs environments: event loops, threads, processes, folders, and what a call may not break."""
