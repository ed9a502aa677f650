"""Accepts connections for a server that has threads of its own.

What always holds: only :meth:`AcceptingSocket.close` ends it. If a connection cannot be accepted, because the process has too
many open files or its client has gone already, that is logged, at most once a minute, and the next one is waited for.
"""

import contextlib
import logging
import socket
import threading

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.network.listener import AGAIN_S
from asyncrl.core.network.rare_warning import RareWarning

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
