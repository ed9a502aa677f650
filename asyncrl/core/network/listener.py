"""Listens for a server that lives in an event loop, and keeps those out who do not say who they are.

What always holds: who connects has :data:`INTRODUCTION_S` to show who it is, the handshake of TLS included, however slowly it
sends; at most :data:`MOST_NEWCOMERS` have not done so yet, and if one more connects, the one that connected first is turned away,
but not before it had :data:`GRACE_S`, so that many who say nothing only make others wait; only :meth:`Listener.close` ends it,
and not a process that has too many open files for a while.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable

from asyncrl.core.network.rare_warning import RareWarning
from asyncrl.core.network.tls import TlsKeys
from asyncrl.core.network.unknown_clients import GRACE_S, INTRODUCTION_S, UnknownClients

logger = logging.getLogger(__name__)

MOST_NEWCOMERS = 256
"""The most clients that have not shown who they are. Those of a run show it within milliseconds."""
BACKLOG = 1024
"""Connections that the kernel holds until they are accepted."""
AGAIN_S = 1.0
"""Pause after a connection could not be accepted: files that are too many now may be closed soon."""


class Listener:
    """Accepts the connections of a server.

    The protocol of a connection calls :meth:`known` as soon as its client has shown who it is, and :meth:`gone` when the
    connection has ended.

    Args:
        server: what the server is called in logs.
        make: makes the protocol of a connection.
        log: the logger of the server's module.
        tls: the keys if connections are encrypted.
    """

    def __init__(
        self, server: str, make: Callable[[], asyncio.BaseProtocol], log: logging.Logger, tls: TlsKeys | None = None
    ) -> None:
        self._server, self._make, self._tls = server, make, None if tls is None else tls.server()
        self.unknown_clients = UnknownClients(server, log)
        self._newcomers: dict[asyncio.BaseProtocol, _Newcomer] = {}  # in the order in which they connected
        self._fewer = asyncio.Event()
        self._listening: list[asyncio.Task[None]] = []
        self._coming: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen at all addresses of ``host``, at ``port`` or at a free one if that is 0; returns the port.

        Raises:
            OSError: that is not possible.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, (address, _, *scope) in dict.fromkeys(found):
            try:
                listening = socket.create_server((address, port, *scope), family=family, backlog=BACKLOG)
            except OSError as error:
                if self._listening and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    continue  # a name that also stands for an address of a kind that this host does not have
                self.close()
                raise
            listening.setblocking(False)
            port = int(listening.getsockname()[1])
            self._listening.append(asyncio.create_task(self._accept(listening), name=f"{self._server}: accept"))
        return port

    def known(self, protocol: asyncio.BaseProtocol) -> None:
        """Note that the client of a connection has shown who it is. Does nothing the second time."""
        self._leave(protocol)

    def gone(self, protocol: asyncio.BaseProtocol, why: str) -> None:
        """Note that a connection has ended; ``why`` is told of a client that had not shown who it is."""
        if (newcomer := self._leave(protocol)) is not None:
            self.unknown_clients.turned_away(newcomer.address, why)

    def close(self) -> None:
        """Accept no more connections; those whose clients are known go on."""
        for task in (*self._listening, *self._coming):
            task.cancel()
        for newcomer in self._newcomers.values():
            newcomer.patience.cancel()
            newcomer.hang_up()
        self._newcomers.clear()
        self.unknown_clients.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop, warning = asyncio.get_running_loop(), RareWarning(logger)
        with listening:
            while True:
                await self._make_room()
                try:
                    connection, address = await loop.sock_accept(listening)
                except OSError as error:
                    warning.log("%s cannot accept connections for a while: %s", self._server, error)
                    await asyncio.sleep(AGAIN_S)
                    continue
                coming = asyncio.create_task(self._admit(connection, address), name=f"{self._server}: {address}")
                self._coming.add(coming)
                coming.add_done_callback(self._coming.discard)
                await asyncio.sleep(0)  # where many connect, accepting does not suspend this task

    async def _make_room(self) -> None:
        """Wait until one more may connect; meanwhile, connections wait in the kernel."""
        while len(self._newcomers) >= MOST_NEWCOMERS:
            first, newcomer = next(iter(self._newcomers.items()))
            self._fewer.clear()
            try:
                async with asyncio.timeout_at(newcomer.since + GRACE_S):
                    await self._fewer.wait()
            except TimeoutError:
                self._turn_away(first, f"had not said who it is when {MOST_NEWCOMERS} others connected")

    async def _admit(self, connection: socket.socket, address: object) -> None:
        """Make the protocol of a connection, and shake hands with its client if it is to be encrypted."""
        loop, protocol = asyncio.get_running_loop(), self._make()
        patience = loop.call_later(INTRODUCTION_S, self._turn_away, protocol, f"did not say who it is in {INTRODUCTION_S:g} s")
        self._newcomers[protocol] = _Newcomer(connection, address, patience, since=loop.time())
        handshake_s = None if self._tls is None else INTRODUCTION_S
        try:
            await loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=handshake_s)
        except OSError:  # ssl.SSLError and TimeoutError are such
            self._turn_away(protocol, "showed no certificate of the run")

    def _leave(self, protocol: asyncio.BaseProtocol) -> "_Newcomer | None":
        newcomer = self._newcomers.pop(protocol, None)
        if newcomer is not None:
            newcomer.patience.cancel()
            self._fewer.set()
        return newcomer

    def _turn_away(self, protocol: asyncio.BaseProtocol, why: str) -> None:
        newcomer = self._newcomers.get(protocol)
        if newcomer is not None:
            self.gone(protocol, why)
            newcomer.hang_up()


class _Newcomer:
    """A connection whose client has not shown who it is."""

    def __init__(self, connection: socket.socket, address: object, patience: asyncio.TimerHandle, since: float) -> None:
        self._connection, self.address, self.patience, self.since = connection, address, patience, since

    def hang_up(self) -> None:
        """Have the connection end, in whatever state it is."""
        with contextlib.suppress(OSError):  # its client has gone
            self._connection.shutdown(socket.SHUT_RDWR)
