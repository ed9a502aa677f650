"""Clients that have not shown a server who they are: how long it bears with them, and the log of those that it turned away.

What always holds: however many there are, at most one line a minute is logged about them, and none is left out of the count.
"""

import logging
import threading
import time
from collections.abc import Callable

from asyncrl.core.network.rare_warning import RareWarning
from asyncrl.core.text import pluralize

INTRODUCTION_S = 10.0
"""Seconds in which a client must have shown who it is, the handshake of TLS included."""
GRACE_S = 0.5
"""Seconds that a client has to show who it is, however many others connect."""


class UnknownClients:
    """The clients that one server turned away: the first is told of at once, later ones by their number. Used in any thread.

    Args:
        server: how the server's lines begin in the log.
        log: the logger of the server's module.
    """

    def __init__(self, server: str, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._server, self._warning = server, RareWarning(log, clock)
        self._lock = threading.Lock()
        self._more, self._last = 0, ""

    def turned_away(self, client: object, why: str) -> None:
        """Count a client that was turned away.

        Args:
            client: its address.
            why: what it did, as what follows its address; words of ours, and none of the client's.
        """
        with self._lock:
            self._more, self._last = self._more + 1, f"{client} {why}"
            if self._warning.is_due:
                self._tell()

    def close(self) -> None:
        """Tell of those that are not told of yet."""
        with self._lock:
            if self._more:
                self._tell()

    def _tell(self) -> None:
        before = f"; {pluralize(self._more - 1, 'other client')} turned away since the last such line" if self._more > 1 else ""
        self._warning.log_now("%s: turned away: %s%s", self._server, self._last, before)
        self._more = 0
