"""The sessions of one worker with an MCP server: one that all episodes share, or one for each episode.

What always holds: an episode that begins finds a session that was up a moment ago; a server that has died is started again; and
when no session could be begun for as long as the recipe allows, everybody who waits is told why.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncrl.core.errors import EnvironmentUnreachable
from asyncrl.envs.mcp.schema_checks import SchemaChecks
from asyncrl.envs.mcp.session import McpServer, McpSession, NoSession

logger = logging.getLogger(__name__)

FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0
"""Seconds until another session is tried after one that could not be begun: at first, and at most."""
STARTS_AT_ONCE = 4
"""The most sessions that are being begun at the same time: each may be a process that imports a lot."""


class Sessions:
    """Lends sessions to episodes. Made by :func:`mcp_sessions`; lives within one event loop.

    Args:
        shared: whether all episodes share one session.
        wait_s: how long episodes wait while no session can be begun.

    Attributes:
        checks: checks the schemas of tools, and what is passed to them.
        remarks: sentences for the user about sessions that ended and were begun again.
    """

    def __init__(self, server: McpServer, shared: bool, wait_s: float) -> None:
        self._server, self._shared, self._wait_s = server, shared, wait_s
        self.checks = SchemaChecks(server.name)
        self._starting = asyncio.Semaphore(STARTS_AT_ONCE)
        self._changed = asyncio.Condition()
        self._current: McpSession | None = None
        self._why = "none has been begun yet"
        self._lent = 0
        self._ending: set[asyncio.Task[None]] = set()
        self.remarks: list[str] = []

    async def take(self) -> McpSession:
        """Return a session for one episode; call :meth:`give_back` at its end.

        Raises:
            EnvironmentUnreachable: none could be begun in time.
        """
        try:
            async with asyncio.timeout(self._wait_s):
                session = await self._up() if self._shared else await self._begin()
        except TimeoutError as error:
            raise EnvironmentUnreachable(
                f"an episode waited {self._wait_s:g} s for a session with {self._server.name} ({self._why}); "
                "make it run again and resume the run, or raise environment.server_timeout_s"
            ) from error
        self._lent += 1
        return session

    def give_back(self, session: McpSession) -> None:
        """Note that an episode is over. A session of its own is ended, which nobody waits for here."""
        self._lent -= 1
        if not self._shared:
            ending = asyncio.create_task(session.end(), name=f"ending a session with {self._server.name}")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def keep(self) -> None:
        """Keep one session for all episodes."""
        while True:
            began = time.monotonic()
            session = await self._begin()
            try:
                if self.remarks:
                    self._remark(f"a session with {self._server.name} was begun again, after {time.monotonic() - began:.1f} s")
                async with self._changed:
                    self._current = session
                    self._changed.notify_all()
                await session.lost.wait()
                lent = self._lent
            finally:
                self._current = None
                await session.end()
            times = f" (loss {len(self.remarks) // 2 + 1})" if self.remarks else ""
            self._why = str(session.lost_error())
            self._remark(f"{self._why}{times}; the {lent} episodes that used it are issued again")

    async def end(self) -> None:
        """Wait for sessions that are being ended, and end the checks."""
        if self._ending:
            await asyncio.wait(self._ending)
        self.checks.close()

    async def _up(self) -> McpSession:
        async with self._changed:
            await self._changed.wait_for(lambda: self._current is not None)
            assert self._current is not None
            return self._current

    async def _begin(self) -> McpSession:
        retry = FIRST_RETRY_S
        while True:
            session = McpSession(self._server, self.checks)
            try:
                async with self._starting:
                    await session.start()
                return session
            except NoSession as problem:
                if self._why != str(problem):
                    self._why = str(problem)
                    logger.warning("%s", problem)
                asked_s = min(problem.wait_s, self._wait_s)
            await asyncio.sleep(max(asked_s, retry * random.uniform(0.5, 1)))
            retry = min(2 * retry, LAST_RETRY_S)

    def _remark(self, sentence: str) -> None:
        logger.warning("%s", sentence)
        self.remarks.append(sentence)


@asynccontextmanager
async def mcp_sessions(server: McpServer, *, shared: bool, wait_s: float) -> AsyncIterator[Sessions]:
    """Lend sessions while this context is open. An error of ours in keeping the shared one ends the context."""
    sessions = Sessions(server, shared, wait_s)
    try:
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(sessions.keep(), name=f"keeping a session with {server.name}") if shared else None
            try:
                yield sessions
            finally:
                if keeping is not None:
                    keeping.cancel()
    finally:
        await sessions.end()
