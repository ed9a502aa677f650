"""A warning that others could cause as often as they like, logged at most once a minute."""

import logging
import time
from collections.abc import Callable

EVERY_S = 60.0
"""Seconds from one line to the next."""


class RareWarning:
    """Logs a warning unless it has logged one within :data:`EVERY_S`. Used by one thread, or under a lock.

    Args:
        log: the logger of the module that warns.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._logged: float | None = None

    @property
    def is_due(self) -> bool:
        """Whether :meth:`log` would log now."""
        return self._logged is None or self._clock() - self._logged >= EVERY_S

    def log(self, text: str, *arguments: object) -> None:
        """Log a line now if it is due."""
        if self.is_due:
            self.log_now(text, *arguments)

    def log_now(self, text: str, *arguments: object) -> None:
        """Log a line, due or not."""
        self._log.warning(text, *arguments)
        self._logged = self._clock()
