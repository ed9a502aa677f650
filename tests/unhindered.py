"""Time as it would pass on a machine that has nothing else to do, for promises of seconds."""

import re
import time
from contextlib import suppress
from pathlib import Path


class Unhindered:
    """Counts the seconds since it was made, without those in which something on this machine waited for a processor or a disk.

    So a wait for a timer or an answer counts in full on an idle machine, and other work makes nothing last longer. Where the
    kernel does not tell who waits (``CONFIG_PSI``), all seconds count.
    """

    def __init__(self) -> None:
        self._began, self._hindered = time.monotonic(), _hindered()

    @property
    def seconds(self) -> float:
        """The seconds counted so far."""
        return time.monotonic() - self._began - (_hindered() - self._hindered)


def _hindered() -> float:
    """Seconds since the machine started in which something waited for a processor, and those in which it waited for a disk."""
    micros = 0
    for what in ("cpu", "io"):
        with suppress(OSError):
            told = re.search(r"some .* total=(\d+)", Path("/proc/pressure", what).read_text())
            micros += int(told[1]) if told else 0
    return micros / 1e6
