"""Measures how late an event loop is: how long a callback that is due has to wait.

A probe that is due every few milliseconds would count a long stall once, and forget all the probes that would have been due
meanwhile. So a stall counts once for each of these, with the time that each would have waited.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

EVERY_S = 0.002
"""Seconds between two probes."""


class LoopLag:
    """The lags of an event loop, in seconds, while :meth:`probing`."""

    def __init__(self) -> None:
        self._lags: list[float] = []

    def add(self, lag: float) -> None:
        """Count a probe that came ``lag`` seconds late, and those that were due while it waited."""
        while lag >= 0:
            self._lags.append(lag)
            lag -= EVERY_S

    def percentile_ms(self, percent: float) -> float:
        """The lag, in milliseconds, that ``percent`` of the probes did not exceed."""
        return float(np.percentile(self._lags, percent)) * 1e3

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Probe the running event loop."""
        probe = asyncio.create_task(self._probe(), name="probing the event loop")
        try:
            yield
        finally:
            probe.cancel()

    async def _probe(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self.add(loop.time() - due)
