"""Heartbeats of the workers: a worker that is silent for too long is reported once.

A heartbeat costs one assignment. Each worker has one timer of the event loop, which is set again only when it goes off.
"""

import asyncio
from collections.abc import Callable

from asyncrl.core.ids import WorkerId

LAST_TENTH = 0.1
"""Share of a worker's time that it always gets after its timer went off. If our own event loop was blocked, it
reads the heartbeats that arrived meanwhile in that time."""


class Heartbeats:
    """Calls ``on_silent`` with each worker that sent no heartbeat for ``seconds``. Use it in one event loop only."""

    def __init__(self, seconds: float, on_silent: Callable[[WorkerId], None]) -> None:
        self._seconds, self._on_silent = seconds, on_silent
        self._heard: dict[WorkerId, float] = {}
        self._timers: dict[WorkerId, asyncio.TimerHandle] = {}

    def heard(self, worker: WorkerId) -> None:
        """Note a heartbeat of ``worker``."""
        loop = asyncio.get_running_loop()
        self._heard[worker] = loop.time()
        if worker not in self._timers:
            self._look_at(worker)

    def forget(self, worker: WorkerId) -> None:
        """Stop expecting heartbeats of ``worker`` until it sends one again."""
        self._heard.pop(worker, None)
        timer = self._timers.pop(worker, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Forget all workers."""
        for worker in list(self._timers):
            self.forget(worker)

    def _look_at(self, worker: WorkerId) -> None:
        begin_of_end = self._heard[worker] + (1 - LAST_TENTH) * self._seconds
        self._timers[worker] = asyncio.get_running_loop().call_at(begin_of_end, self._look, worker)

    def _look(self, worker: WorkerId) -> None:
        heard = self._heard[worker]
        loop = asyncio.get_running_loop()
        if loop.time() < heard + (1 - LAST_TENTH) * self._seconds:
            self._look_at(worker)
        else:
            self._timers[worker] = loop.call_later(LAST_TENTH * self._seconds, self._decide, worker, heard)

    def _decide(self, worker: WorkerId, heard: float) -> None:
        if self._heard[worker] > heard:
            self._look_at(worker)
        else:
            self.forget(worker)
            self._on_silent(worker)
