"""Who was heard of lately: a worker that is silent for too long is reported, once, until it is heard again.

Hearing a worker costs one assignment; each worker has one timer of the event loop, set anew only when it goes off.
"""

import asyncio
from collections.abc import Callable

from asyncrl.core.ids import WorkerId


class Heartbeats:
    """Reports workers by ``on_silent`` when they were not heard for ``seconds``. Lives within one event loop."""

    def __init__(self, seconds: float, on_silent: Callable[[WorkerId], None]) -> None:
        self._seconds, self._on_silent = seconds, on_silent
        self._heard: dict[WorkerId, float] = {}
        self._timers: dict[WorkerId, asyncio.TimerHandle] = {}

    def heard(self, worker: WorkerId) -> None:
        """``worker`` lives."""
        loop = asyncio.get_running_loop()
        self._heard[worker] = loop.time()
        if worker not in self._timers:
            self._timers[worker] = loop.call_later(self._seconds, self._check, worker)

    def forget(self, worker: WorkerId) -> None:
        """``worker`` is not expected to be heard any more; it may come back."""
        self._heard.pop(worker, None)
        timer = self._timers.pop(worker, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Forget all."""
        for worker in list(self._timers):
            self.forget(worker)

    def _check(self, worker: WorkerId) -> None:
        loop = asyncio.get_running_loop()
        due = self._heard[worker] + self._seconds
        if due > loop.time():
            self._timers[worker] = loop.call_at(due, self._check, worker)
            return
        self.forget(worker)
        self._on_silent(worker)
