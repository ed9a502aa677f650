"""Pauses of the run: keeps who cannot go on and why, and stops deadlines meanwhile.

A run that waits for room on a disk is not late, so paused time does not count for any deadline.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Pauses:
    """Holds a message of each component that cannot go on. The run is paused while there is at least one."""

    def __init__(self) -> None:
        self._messages: dict[str, str] = {}
        self._running: set[asyncio.Timeout] = set()
        self._stopped: dict[asyncio.Timeout, float] = {}
        """Deadlines that stand still, and the seconds that each has left."""

    @property
    def message(self) -> str:
        """Who is paused and why; empty if nobody is."""
        return "; ".join(f"{who}: {message}" for who, message in self._messages.items())

    def set(self, who: str, message: str) -> None:
        """Note that ``who`` cannot go on because of ``message``; an empty message means that it goes on."""
        now = asyncio.get_running_loop().time()
        if message:
            self._messages[who] = message
            for scope in self._running:
                self._stop(scope, now)
            self._running.clear()
            return
        self._messages.pop(who, None)
        if not self._messages:
            for scope, left in self._stopped.items():
                scope.reschedule(now + left)
            self._running.update(self._stopped)
            self._stopped.clear()

    def _stop(self, scope: asyncio.Timeout, now: float) -> None:
        due = scope.when()
        if due is not None and not scope.expired():
            self._stopped[scope] = due - now
            scope.reschedule(None)

    @asynccontextmanager
    async def deadline(self, seconds: float) -> AsyncIterator[None]:
        """Raise ``TimeoutError`` in the enclosed wait after ``seconds``, not counting paused time."""
        async with asyncio.timeout(seconds) as scope:
            self._running.add(scope)
            if self._messages:
                self._running.discard(scope)
                self._stop(scope, asyncio.get_running_loop().time())
            try:
                yield
            finally:
                self._running.discard(scope)
                self._stopped.pop(scope, None)
