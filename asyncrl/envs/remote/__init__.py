"""Environments served from another process, container or host, over the protocol of docs/how-to/remote-environments.md."""
