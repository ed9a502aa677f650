"""How an engine's time was spent: busy or idle. It is told of the moments at which that changes; nothing is sampled."""

from collections.abc import Callable


class Occupancy:
    """Time since creation splits exactly into busy and idle: idle is when no request runs, or the engine is paused.

    Args:
        clock: tells the time in seconds, and never goes back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = self._changed = clock()
        self._idle = self._paused_seconds = self._request_seconds = 0.0
        self.running = 0

    def enter(self) -> None:
        """A request began."""
        self._settle()
        self.running += 1

    def leave(self) -> None:
        """A request ended."""
        self._settle()
        self.running -= 1

    def paused_for(self, seconds: float) -> None:
        """The engine had stopped generating for ``seconds`` until a moment ago."""
        self._settle()
        self._paused_seconds += seconds
        if self.running:  # otherwise that time is idle already
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
        """Seconds that all requests took, added up; pauses are part of them."""
        self._settle()
        return self._request_seconds

    def _settle(self) -> None:
        now = self._clock()
        elapsed, self._changed = now - self._changed, now
        if self.running == 0:
            self._idle += elapsed
        self._request_seconds += self.running * elapsed
