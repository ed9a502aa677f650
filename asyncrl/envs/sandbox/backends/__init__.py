"""The ways to confine a command. Each says why it cannot work here, and starts a command for the process that watches it."""
