"""The clients of a server of weights that have not shown the secret yet, each of which a thread of its own waits for.

What always holds: there are at most :data:`MOST_UNKNOWN`; if one more connects, the one that connected first is turned away, but
not before it had :data:`GRACE_S`. Who knows the secret shows it at once.
"""

import contextlib
import socket
import ssl
import threading
import time

from asyncrl.core.strangers import GRACE_S

MOST_UNKNOWN = 64


class UnknownClients:
    """The clients of one server. Its methods may be called in any thread."""

    def __init__(self) -> None:
        self._connections: dict[threading.Thread, socket.socket] = {}  # in the order in which they connected
        self._since: dict[threading.Thread, float] = {}
        self._lock = threading.Condition()

    def enter(self, thread: threading.Thread, connection: socket.socket) -> bool:
        """Take in a client that has just connected, and start the ``thread`` that will wait for it. Waits for room.

        Returns:
            Whether the thread could be started; else the connection is closed.
        """
        with self._lock:
            while len(self._connections) >= MOST_UNKNOWN:
                first = next(iter(self._connections))
                if (left := self._since[first] + GRACE_S - time.monotonic()) > 0:
                    self._lock.wait(left)
                    continue
                with contextlib.suppress(OSError):  # its client has gone
                    # That of TLS would take the keys from the other thread.
                    socket.socket.shutdown(self._connections[first], socket.SHUT_RDWR)
                self._forget(first)
            self._connections[thread], self._since[thread] = connection, time.monotonic()
        try:
            thread.start()
        except RuntimeError:  # the machine has no thread left
            connection.close()
            with self._lock:
                self._forget(thread)
            return False
        return True

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
            self._forget(threading.current_thread())
            self._lock.notify_all()

    def _forget(self, thread: threading.Thread) -> None:
        self._connections.pop(thread, None)
        self._since.pop(thread, None)
