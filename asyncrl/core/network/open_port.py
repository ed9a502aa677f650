"""Finds a port that nobody listens on."""

import socket


def open_port(address: str) -> int:
    """Return a port of ``address``, one of this host, on which nobody listens now. Somebody else may take it first."""
    with socket.create_server((address, 0)) as listening:
        return int(listening.getsockname()[1])
