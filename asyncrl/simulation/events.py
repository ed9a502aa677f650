"""Simulated time: what happens when, in order. A run is a pure function of what is put in."""

import heapq
from collections.abc import Callable
from itertools import count


class Events:
    """What is still to happen. Of two things at the same time, the one that was put in first comes first.

    Attributes:
        now: seconds since the start.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()

    def clock(self) -> float:
        """Return :attr:`now`, as a clock of the production code."""
        return self.now

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        """Have something happen in so many seconds."""
        heapq.heappush(self._waiting, (self.now + seconds, next(self._serial), happen))

    def next(self) -> bool:
        """Let time pass until the next thing has happened; False if there is none."""
        if not self._waiting:
            return False
        self.now, _, happen = heapq.heappop(self._waiting)
        happen()
        return True
