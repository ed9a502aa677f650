"""A client of a server of weights that sends a byte ten times a second."""

import socket
from contextlib import suppress


def is_turned_away_while_it_sends(there: tuple[str, int], bytes_one_by_one: bytes) -> bool:
    """Whether the server at ``there`` ends the connection before it has all these bytes."""
    with socket.create_connection(there, 0.1) as slow:
        try:
            for byte in bytes_one_by_one:
                slow.sendall(bytes([byte]))
                with suppress(TimeoutError):
                    slow.recv(1)
                    return True
        except ConnectionError:
            return True
    return False
