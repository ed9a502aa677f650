"""Shares one event loop among many episodes: what takes processor time is done in turns, so no pass of the loop takes long.

Hundreds of episodes may become ready in the same pass, since they begin together, or their tools or turns end together. Each
needs about a millisecond to render, encode or parse, so the pass would take half a second, in which no lease is renewed and no
tool's deadline is kept. What always holds: whoever waits gets its turn in order, a few in each pass of the loop; and where nobody
waits, taking a turn costs nothing.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

LONG_PASS_S = 0.002
"""A pass of the loop that takes longer gets fewer turns the next time."""
MOST_TURNS = 32
"""Turns in one pass, at most."""


class LoopShare:
    """Gives turns in the running event loop.

    Args:
        clock: returns the time in seconds; must never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._given = False
        self._turns = 1
        self._passed = 0.0

    async def turn(self) -> None:
        """Wait until it is this episode's turn to use the processor."""
        loop = asyncio.get_running_loop()
        if not self._given:
            self._given, self._passed = True, self._clock()
            loop.call_soon(self._pass, loop)
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _pass(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin a pass: give as many turns as the last passes leave room for."""
        now = self._clock()
        self._turns = max(1, self._turns // 2) if now - self._passed > LONG_PASS_S else min(self._turns + 1, MOST_TURNS)
        self._passed = now
        given = 0
        while self._waiting and given < self._turns:
            turn = self._waiting.popleft()
            if not turn.done():  # else it was cancelled
                turn.set_result(None)
                given += 1
        self._given = given > 0
        if self._given:
            loop.call_soon(self._pass, loop)
