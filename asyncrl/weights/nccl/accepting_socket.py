"""Accepts connections for a server that has threads of its own, of which each waits for one client to show the secret.

What always holds: only :meth:`AcceptingSocket.close` ends it. If a connection cannot be accepted, because the process has too
many open files or its client has gone already, that is logged, at most once a minute, and the next one is waited for. At most
:data:`MOST_UNKNOWN` clients have not shown the secret; if one more connects, the one that connected first is turned away, but not
before it had :data:`GRACE_S`. Who knows the secret shows it at once.
"""

import contextlib
import logging
import socket
import threading
import time
from typing import NamedTuple

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.network.listener import AGAIN_S
from asyncrl.core.network.rare_warning import RareWarning
from asyncrl.core.network.unknown_clients import GRACE_S

logger = logging.getLogger(__name__)


class AcceptingSocket:
    """Listens at a free port of ``host`` from its making until :meth:`close`.

    Args:
        host: an address of this node.
        server: whose connections they are, for errors.

    Raises:
        ComponentFailed: ``host`` is not an address of this node.

    Attributes:
        address: where it listens: host and port.
    """

    def __init__(self, host: str, server: str) -> None:
        self._server, self._closed, self._warning = server, threading.Event(), RareWarning(logger)
        try:
            self._listening = socket.create_server((host, 0))
        except OSError as error:
            remedy = "start Ray on this node with the --node-ip-address of one of its own interfaces"
            raise ComponentFailed(f"{server} cannot listen at {host}: {error.strerror}; {remedy}") from error
        self.address: tuple[str, int] = self._listening.getsockname()[:2]

    def accept(self) -> tuple[socket.socket, object] | None:
        """Wait for the next connection; return it with the address of its client, or None once this is closed."""
        while not self._closed.is_set():
            try:
                return self._listening.accept()
            except OSError as error:
                if not self._closed.wait(AGAIN_S):
                    self._warning.log("%s at %s could not accept a connection: %s", self._server, self.address, error)
        return None

    def close(self) -> None:
        """Accept no more connections, and have a call of :meth:`accept` in another thread return. May be called again."""
        self._closed.set()
        with contextlib.suppress(OSError):  # accept() in the other thread returns only after a shutdown
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


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
