"""Serves an environment to workers elsewhere, over the protocol of docs/remote-environments.md.

It needs msgspec, numpy and aiohttp, but no torch, vLLM or Ray, so that it runs in the environment's own virtual environment. What
always holds: the sockets have an event loop in which no environment runs, so that a blocked environment makes its own requests
late, and neither pings nor other connections.
"""

import asyncio
import hmac
import logging
import signal
from collections.abc import Callable
from http import HTTPStatus

from aiohttp import web

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
        self._runner: web.AppRunner | None = None
        self._connections: set[ServedConnection] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen at ``host`` and ``port``, or at a free port if that is 0; returns the port.

        Raises:
            OSError: the address cannot be used.
        """
        self.environments.start()
        application = web.Application()
        application.router.add_get("/{path:.*}", self._connect)
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=STOP_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self.environments.watch()
        listening: int = self._runner.addresses[0][1]
        return listening

    async def close(self) -> None:
        """End all connections and close their environments."""
        await asyncio.gather(*(each.end() for each in self._connections))
        if self._runner is not None:
            await self._runner.cleanup()
            await self.environments.close()

    @property
    def episodes(self) -> int:
        """How many episodes are open."""
        return sum(len(each.episodes) for each in self._connections)

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        shown = request.headers.get("Authorization", "").encode(errors="replace")
        if not hmac.compare_digest(shown, b"Bearer " + self._token):
            logger.warning("%s connected without the token", request.remote)
            return web.Response(status=HTTPStatus.UNAUTHORIZED, text="show the token: Authorization: Bearer TOKEN")
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
