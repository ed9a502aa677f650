"""Finds a port that nobody listens on, or holds one."""

import socket


def open_port(address: str) -> int:
    """Return a port of ``address``, one of this host, on which nobody listens now. Somebody else may take it first."""
    with socket.create_server((address, 0)) as listening:
        return int(listening.getsockname()[1])


def held_port(address: str) -> socket.socket:
    """Return a socket that holds a port of ``address``, one of this host, for another process, and does not listen on it.

    Until it is closed, the system gives the port to nobody who asks for any port. Whoever asks for this one, and lets addresses
    be used again (``SO_REUSEADDR``) as torch's stores do, can listen on it.
    """
    holding = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holding.bind((address, 0))
    return holding
