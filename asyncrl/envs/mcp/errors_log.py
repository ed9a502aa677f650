"""Takes what a server writes to its standard error into our log, up to a limit."""

import contextlib
import logging
import os
import threading
from collections import deque
from typing import TextIO

from asyncrl.core.text import writable

logger = logging.getLogger(__name__)

MOST_LINES = 200
"""Lines of one server's process that are logged; later ones are read and dropped, so that the server never waits for us."""
LINE = 500
"""The most characters of a line that are kept."""
LAST_LINES = 3
"""Lines that an error quotes."""


class ErrorsLog:
    """A pipe for the standard error of one process. Open :attr:`file` is handed to the process; :meth:`close` closes our end.

    Args:
        name: how its lines begin in the log.
    """

    def __init__(self, name: str) -> None:
        reading, writing = os.pipe()
        self.file: TextIO = os.fdopen(writing, "w")
        self._name = name
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._thread = threading.Thread(target=self._read, args=(reading,), name=f"{name}: standard error", daemon=True)
        self._thread.start()

    @property
    def last(self) -> str:
        """The last lines that the process wrote; empty if it wrote none."""
        return " | ".join(self._last)

    def join(self, seconds: float) -> None:
        """Wait until everything was read that the process wrote, which has ended, for at most ``seconds``."""
        self._thread.join(seconds)

    def close(self) -> None:
        """Close our end. The thread ends when the process and all its children have closed theirs."""
        self.file.close()

    def _read(self, reading: int) -> None:
        logged = 0
        with contextlib.closing(os.fdopen(reading, errors="backslashreplace")) as lines:
            while line := lines.readline(LINE):
                if text := writable(line.strip()):
                    self._last.append(text)
                    logged += 1
                    if logged <= MOST_LINES:
                        logger.info("%s: %s", self._name, text)
                    elif logged == MOST_LINES + 1:
                        logger.info("%s: further lines are not logged", self._name)
