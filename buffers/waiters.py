"""Keeps the callers that wait for tickets or batches, and wakes them.

What always holds: a waiter is woken when what it waits for has come or can no longer come, and fails when the buffer
does. Being woken guarantees nothing: others may be faster, so each waiter checks again. Room wakes one waiter at a
time, the one that has waited longest; its own lease wakes the next if there is room left.
"""

import asyncio
from collections import deque

from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.core.ids import PolicyVersion


class Waiters:
    """The waiters of one buffer. Use it in one event loop only.

    Args:
        buffer: the buffer; after each change of it, :meth:`wake` must be called.
    """

    def __init__(self, buffer: ReplayBuffer, groups_per_step: int) -> None:
        self._buffer, self._groups_per_step = buffer, groups_per_step
        self._leasing: dict[PolicyVersion, deque[asyncio.Future[None]]] = {}
        self._taking: dict[asyncio.Future[None], PolicyVersion] = {}

    async def room(self, version: PolicyVersion) -> None:
        """Wait until there is room at ``version`` or a newer version is published; forever if one already is."""
        woken = asyncio.get_running_loop().create_future()
        if version < self._buffer.version:
            await woken
        waiting = self._leasing.setdefault(version, deque())
        waiting.append(woken)
        try:
            await woken
        except asyncio.CancelledError:
            if woken.done() and not woken.cancelled():
                self.wake()  # another waiter may use the room that woke this one
            raise
        finally:
            if woken in waiting:
                waiting.remove(woken)
            if not self._leasing.get(version, waiting):
                self._leasing.pop(version, None)

    async def batch(self, version: PolicyVersion) -> None:
        """Wait until the batch of ``version`` can be taken, or groups are too old for it and must expire first."""
        woken = asyncio.get_running_loop().create_future()
        self._taking[woken] = version
        try:
            await woken
        finally:
            del self._taking[woken]

    def wake(self) -> None:
        """Wake the waiters that can go on after a change of the buffer."""
        buffer = self._buffer
        for woken, version in self._taking.items():
            if not woken.done() and (
                buffer.batches.takeable(version, self._groups_per_step) or buffer.batches.has_stale(version)
            ):
                woken.set_result(None)
        for passed in [version for version in self._leasing if version < buffer.version]:
            for woken in self._leasing.pop(passed):
                if not woken.done():
                    woken.set_result(None)
        waiting = self._leasing.get(buffer.version)
        if waiting and buffer.room() > 0:
            while waiting:
                woken = waiting.popleft()
                if not woken.done():
                    woken.set_result(None)
                    break

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` in all current waiters."""
        for woken in (*self._taking, *(woken for waiting in self._leasing.values() for woken in waiting)):
            if not woken.done():
                woken.set_exception(error)


def fair_share(room: int, asking: int) -> int:
    """Return how many tickets one of ``asking`` workers may have where there is room for ``room``.

    A publication makes room for a whole batch at once. If the first worker took all of it, the others would wait for the next
    publication while its engine played what all could play side by side.
    """
    return -(-room // asking)
