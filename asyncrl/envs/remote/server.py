"""Serves an environment to workers elsewhere, over the protocol of docs/how-to/remote-environments.md.

It needs msgspec, numpy and aiohttp, but no torch, vLLM or Ray, so that it runs in the environment's own virtual environment. What
always holds: the sockets have an event loop in which no environment runs, so that a blocked environment makes its own requests
late, and neither pings nor other connections; who does not show the token is turned away soon, whatever it sends, and keeps
nobody else out (:mod:`asyncrl.core.network.listener`).
"""

import asyncio
import hmac
import logging
import signal
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import ClientConnectionResetError, web
from aiohttp.http_exceptions import HttpProcessingError

from asyncrl.core.network.listener import Listener
from asyncrl.envs.remote import protocol
from asyncrl.envs.remote.served_connection import ServedConnection
from asyncrl.envs.remote.served_environments import Served, ServedEnvironments
from asyncrl.envs.secrets import clean_logs

logger = logging.getLogger(__name__)

STOP_S = 10.0
"""Seconds that connections have to end when the server is stopped."""


class EnvironmentServer:
    """Serves environments to all clients that show the token."""

    def __init__(self, environments: ServedEnvironments, token: str) -> None:
        self.environments, self._token = environments, token.encode()
        self._connections: set[ServedConnection] = set()
        self._http: _Http | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen at ``host`` and ``port``, or at a free port if that is 0; returns the port.

        Raises:
            OSError: the address cannot be used.
        """
        self.environments.start()
        self._http = _Http(self._connect)
        listening = await self._http.listener.start(host, port)
        self.environments.watch()
        return listening

    async def close(self) -> None:
        """End all connections and close their environments."""
        if self._http is not None:
            self._http.listener.close()
        await asyncio.gather(*(each.end() for each in self._connections))
        if self._http is not None:
            self._http.pre_shutdown()
            await self._http.shutdown(STOP_S)
            await self.environments.close()

    @property
    def episodes(self) -> int:
        """How many episodes are open."""
        return sum(len(each.episodes) for each in self._connections)

    async def _connect(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._http is not None
        shown = request.headers.get("Authorization", "").encode(errors="replace")
        if not hmac.compare_digest(shown, b"Bearer " + self._token):
            refused = web.Response(status=HTTPStatus.UNAUTHORIZED, text="show the token: Authorization: Bearer TOKEN")
            refused.force_close()
            return refused
        self._http.listener.known(request.protocol)
        socket = web.WebSocketResponse(heartbeat=protocol.PING_S, max_msg_size=protocol.LARGEST_MESSAGE, compress=False)
        if not socket.can_prepare(request).ok:
            return web.Response(status=HTTPStatus.UPGRADE_REQUIRED, text="environments are served over a WebSocket")
        await socket.prepare(request)
        connection = ServedConnection(self.environments, socket, str(request.remote))
        self._connections.add(connection)
        try:
            await connection.serve()
        finally:
            self._connections.discard(connection)
        return socket


class _Http(web.Server):
    """Speaks HTTP with those whom its listener lets in.

    Attributes:
        listener: knows which of them have shown the token.
    """

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(handler, access_log=None, logger=_own_errors)
        self.listener = Listener("asyncrl env serve", self, logger)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Note that a connection has ended."""
        self.listener.gone(handler, "did not show the token")
        super().connection_lost(handler, exc)


def _is_own(record: logging.LogRecord) -> bool:
    """Whether an error that aiohttp logs is ours. A request that it could not read is turned away, and told of as such; a client
    that is gone before its connection is taken has lost nothing."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError | ClientConnectionResetError)


_own_errors = logging.getLogger(f"{__name__}.http")
_own_errors.addFilter(_is_own)


async def serve(served: Served, token: str, host: str, port: int, name: str, listening: Callable[[int], None]) -> None:
    """Serve an environment until the process is told to stop.

    Args:
        name: the server's program and version, as clients are told.
        listening: is called with the port as soon as clients can connect.

    Raises:
        RecipeError: the environment cannot be used.
        OSError: the address cannot be used.
        ComponentFailed: the environments' event loop ended or was blocked for too long, or what they share ended by itself.
    """
    server = EnvironmentServer(ServedEnvironments(served, name), token)
    clean_logs(server.environments.secrets, logging.getLogger().handlers)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    listening(await server.start(host, port))
    failing = asyncio.create_task(server.environments.wait_failed())
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait({failing, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if failing.done():
        raise failing.result()
    failing.cancel()
    await server.close()
