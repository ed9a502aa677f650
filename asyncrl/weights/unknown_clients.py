"""The clients of a server of weights that have not shown the secret yet, each of which a thread of its own waits for.

What always holds: there are at most :data:`MOST_UNKNOWN`; if one more connects, the one that connected first is turned away.
Who knows the secret shows it at once.
"""

import contextlib
import socket
import ssl
import threading

MOST_UNKNOWN = 64


class UnknownClients:
    """The clients of one server. Its methods may be called in any thread."""

    def __init__(self) -> None:
        self._connections: dict[threading.Thread, socket.socket] = {}  # in the order in which they connected
        self._lock = threading.Lock()

    def enter(self, thread: threading.Thread, connection: socket.socket) -> None:
        """Take in a client that has just connected, and that ``thread`` will wait for."""
        with self._lock:
            self._connections[thread] = connection
            if len(self._connections) > MOST_UNKNOWN:
                first = self._connections.pop(next(iter(self._connections)))
                with contextlib.suppress(OSError):  # its client has gone
                    socket.socket.shutdown(first, socket.SHUT_RDWR)  # that of TLS would take the keys from the other thread

    def wrapped(self, connection: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
        """Return the connection of the calling thread, ready for the handshake of TLS; ``connection`` is of no use any more."""
        thread = threading.current_thread()
        with self._lock:
            wrapped = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            if thread in self._connections:
                self._connections[thread] = wrapped
        return wrapped

    def leave(self) -> None:
        """Note that the client of the calling thread has shown the secret, or is gone. Does nothing the second time."""
        with self._lock:
            self._connections.pop(threading.current_thread(), None)
