"""Keeps connections to all servers of an environment, and gives each episode to the server with the fewest.

What always holds: a server that is lost is connected again as soon as it is back; an episode that finds no server waits, and when
none has been there for the pool's deadline, everybody who waits is told so.
"""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from asyncrl.core.errors import EnvironmentUnreachable
from asyncrl.envs.remote.connection import Connection, NotConnected

logger = logging.getLogger(__name__)

FIRST_RETRY_S, LAST_RETRY_S = 0.1, 3.0
"""Seconds until a server that is lost is tried again: at first, and at most."""


class Servers(msgspec.Struct, frozen=True):
    """The servers of one environment, and how they are asked.

    Attributes:
        urls: their addresses.
        options: options of the environment's constructor.
        tool_timeout_s: deadline of one tool call.
        episode_timeout_s: deadline of a reset or step; the episode's own deadline is the same and usually ends it before.
        wait_s: how long episodes wait while no server is there.
        client: the program and its version, as servers are told.
    """

    urls: tuple[str, ...]
    options: Mapping[str, Any]
    tool_timeout_s: float
    episode_timeout_s: float
    wait_s: float
    client: str


class ServerPool:
    """The connections of one worker. Made by :func:`serving`; lives within one event loop.

    Attributes:
        servers: what it was made with.
        up: the connections that are up, by URL.
        changed: notified when there is a further one.
        episode_numbers: numbers for episodes, none of which comes twice.
        remarks: sentences for the user about servers that were lost and came back.
    """

    def __init__(self, servers: Servers, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.servers, self._token, self._clock = servers, token, clock
        self.up: dict[str, Connection] = {}
        self._why_down: dict[str, str] = dict.fromkeys(servers.urls, "not connected yet")
        self._losses: dict[str, int] = dict.fromkeys(servers.urls, 0)
        self.changed = asyncio.Condition()
        self._environment = ""
        self.episode_numbers = itertools.count()
        self.remarks: list[str] = []

    async def take(self) -> Connection:
        """Return the connection with the fewest episodes, with one more; call :meth:`give_back` at the episode's end.

        Raises:
            EnvironmentUnreachable: no server was there in time.
        """
        waited_for = f"any of {', '.join(self.servers.urls)}"
        try:
            async with asyncio.timeout(self.servers.wait_s), self.changed:
                await self.changed.wait_for(lambda: self.up)
                connection = min(self.up.values(), key=lambda each: (each.episodes, random.random()))
                connection.episodes += 1
                return connection
        except TimeoutError as error:
            reasons = "; ".join(self._why_down[url] for url in self.servers.urls)
            raise EnvironmentUnreachable(
                f"an episode waited {self.servers.wait_s:g} s for {waited_for} ({reasons}); start one again with `asyncrl env "
                "serve` and resume the run, or raise environment.server_timeout_s"
            ) from error

    @staticmethod
    def give_back(connection: Connection) -> None:
        """Count an episode out."""
        connection.episodes -= 1

    async def keep(self, url: str, session: aiohttp.ClientSession) -> None:
        """Keep a connection to ``url`` for ever."""
        retry = FIRST_RETRY_S
        down_since = self._clock()
        while True:
            try:
                connection = await Connection.open(url, self._token, self.servers.client, session)
                await self._check_environment(connection)
            except NotConnected as problem:
                if self._why_down[url] != str(problem):
                    self._why_down[url] = str(problem)
                    logger.warning("%s", problem)
                await asyncio.sleep(retry * random.uniform(0.5, 1))
                retry = min(2 * retry, LAST_RETRY_S)
                continue
            if self._losses[url]:
                self._remark(f"the environment server {url} answers again, after {self._clock() - down_since:.0f} s")
            try:
                async with self.changed:
                    self.up[url] = connection
                    self.changed.notify_all()
                await connection.lost.wait()
            finally:
                self.up.pop(url, None)
                await connection.close()
            retry, down_since = FIRST_RETRY_S, self._clock()
            self._lost(url, connection)

    async def _check_environment(self, connection: Connection) -> None:
        self._environment = self._environment or connection.environment
        if connection.environment != self._environment:
            await connection.close()
            problem = f"{connection.url} serves {connection.environment}, and the run began with {self._environment}"
            raise NotConnected(problem, "serve the same environment everywhere", final=True)

    def _lost(self, url: str, connection: Connection) -> None:
        self._losses[url] += 1
        self._why_down[url] = f"{url} is gone: {connection.why}"
        times = "" if self._losses[url] == 1 else f" (loss {self._losses[url]})"
        lost = connection.lost_episodes
        episodes = f"its {lost} episodes are issued again" if lost else "it had no episodes"
        left = "the other servers go on" if self.up else f"new episodes wait for up to {self.servers.wait_s:g} s"
        self._remark(f"the environment server {url} is gone{times}: {connection.why}; {episodes}, and {left}")

    def _remark(self, sentence: str) -> None:
        logger.warning("%s", sentence)
        self.remarks.append(sentence)


@asynccontextmanager
async def serving(servers: Servers, token: str) -> AsyncIterator[ServerPool]:
    """Keep connections to ``servers`` while this context is open. An error of ours in keeping them ends the context."""
    pool = ServerPool(servers, token)
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        keeping = [group.create_task(pool.keep(url, session), name=f"connection to {url}") for url in servers.urls]
        try:
            yield pool
        finally:
            for task in keeping:
                task.cancel()
