"""Finds the code of the user's that keeps an event loop from running, by looking at its thread from another one."""

import asyncio
import sys
import threading
import time
from pathlib import Path
from types import CodeType

from asyncrl.envs.hosting.blocking import NOBODY, Place, find_place

LOOK_S = 0.01
"""Seconds between two looks."""
SEEN_S = 0.1
"""A stretch of this many seconds in one place is a block; shorter ones may be the system's doing."""


class LoopWatch:
    """Watches the running event loop while its context is open.

    Attributes:
        blocked: the longest stretch, in seconds, that each place kept the loop from running.

    Args:
        below: code object of the function that runs the loop.
    """

    def __init__(self, below: CodeType) -> None:
        self._below = below
        self.blocked: dict[Place, float] = {}
        self._closed, self._turned = threading.Event(), threading.Event()

    def __enter__(self) -> "LoopWatch":
        self._loop, self._thread = asyncio.get_running_loop(), threading.current_thread()
        self._turned.set()
        threading.Thread(target=self._run, name="watching for blocking code", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()

    def _state(self) -> tuple[str, int]:
        """Ask the system about the watched thread: ``R`` if it could run, and the processor time it had, in ticks."""
        try:
            fields = Path(f"/proc/self/task/{self._thread.native_id}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # no such system, or the thread has ended
            return "?", 0
        return fields[0], int(fields[11]) + int(fields[12])

    def _run(self) -> None:
        since, where, used = time.monotonic(), NOBODY, 0
        while not self._closed.wait(LOOK_S):
            now = time.monotonic()
            if self._turned.is_set():
                self._turned.clear()
                try:
                    self._loop.call_soon_threadsafe(self._turned.set)
                except RuntimeError:  # the loop is closed
                    return
                since, where = now, NOBODY
                continue
            before = used
            state, used = self._state()
            if state == "R" and used == before:  # it could run, but the system gives its processor to others
                since = now
                continue
            place, _ = find_place(sys._current_frames().get(self._thread.ident or 0), self._below)
            if place != where:
                since, where = now, place
            elif place != NOBODY and now - since >= SEEN_S:
                self.blocked[place] = max(self.blocked.get(place, 0.0), now - since)
