"""Measures how long an engine was busy and idle. Its owner reports every change, so the times are exact."""

from collections.abc import Callable


class Occupancy:
    """Splits the time since creation into busy and idle. The engine is idle when no request runs or it is paused.

    Attributes:
        running: number of requests that are running.

    Args:
        clock: returns the time in seconds; must never go back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = self._changed = clock()
        self._idle = self._paused_seconds = self._request_seconds = 0.0
        self.running = 0

    def enter(self) -> None:
        """Note that a request began."""
        self._settle()
        self.running += 1

    def leave(self) -> None:
        """Note that a request ended."""
        self._settle()
        self.running -= 1

    def paused_for(self, seconds: float) -> None:
        """Note that the engine was paused for the last ``seconds``."""
        self._settle()
        self._paused_seconds += seconds
        if self.running:  # otherwise the pause is counted as idle time already
            self._idle += seconds

    @property
    def wall_seconds(self) -> float:
        """Seconds since creation."""
        return self._clock() - self._began

    @property
    def idle_seconds(self) -> float:
        """Seconds in which no request ran or the engine was paused."""
        self._settle()
        return self._idle

    @property
    def paused_seconds(self) -> float:
        """Seconds in which the engine was paused."""
        self._settle()
        return self._paused_seconds

    @property
    def request_seconds(self) -> float:
        """Seconds that requests took, pauses included, summed over all requests."""
        self._settle()
        return self._request_seconds

    def _settle(self) -> None:
        now = self._clock()
        elapsed, self._changed = now - self._changed, now
        if self.running == 0:
            self._idle += elapsed
        self._request_seconds += self.running * elapsed
