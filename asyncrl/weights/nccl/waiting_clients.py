"""The clients of a server of weights that have not shown the secret yet, each of which a thread of its own waits for.

What always holds: there are at most :data:`MOST_UNKNOWN`; if one more connects, the one that connected first is turned away, but
not before it had :data:`GRACE_S`. Who knows the secret shows it at once.
"""

import contextlib
import socket
import threading
import time
from typing import NamedTuple

from asyncrl.core.network.unknown_clients import GRACE_S

MOST_UNKNOWN = 64


class _Client(NamedTuple):
    connection: socket.socket
    since: float


class WaitingClients:
    """The clients of one server. Its methods may be called in any thread."""

    def __init__(self) -> None:
        self._clients: dict[threading.Thread, _Client] = {}  # in the order in which they connected
        self._changed = threading.Condition()

    def enter(self, thread: threading.Thread, connection: socket.socket) -> bool:
        """Take in a client that has just connected, and start the ``thread`` that will wait for it. Waits for room.

        Returns:
            Whether the thread could be started; else the connection is closed.
        """
        with self._changed:
            while len(self._clients) >= MOST_UNKNOWN:
                first, client = next(iter(self._clients.items()))
                if (left := client.since + GRACE_S - time.monotonic()) > 0:
                    self._changed.wait(left)
                    continue
                with contextlib.suppress(OSError):  # its client has gone
                    client.connection.shutdown(socket.SHUT_RDWR)
                del self._clients[first]
            self._clients[thread] = _Client(connection, time.monotonic())
        try:
            thread.start()
        except RuntimeError:  # the machine has no thread left
            connection.close()
            with self._changed:
                self._clients.pop(thread, None)
            return False
        return True

    def leave(self) -> None:
        """Note that the client of the calling thread has shown the secret, or is gone. Does nothing the second time."""
        with self._changed:
            self._clients.pop(threading.current_thread(), None)
            self._changed.notify_all()
