"""Who waits for tickets and for batches, and when they are woken.

What always holds: whoever waits is woken when what it waits for has come or can come no more, and fails when the buffer does. To
be woken promises nothing: others may be faster, so each waiter looks again. Room wakes one waiter at a time, the one that has
waited longest; its own lease wakes the next if there is room left.
"""

import asyncio
from collections import deque

from asyncrl.core.ids import PolicyVersion
from buffers.replay_buffer import ReplayBuffer


class Waiters:
    """Waiters for one buffer. Lives within one event loop.

    Args:
        buffer: what they look at; whoever changes it calls :meth:`wake`.
    """

    def __init__(self, buffer: ReplayBuffer, groups_per_step: int) -> None:
        self._buffer, self._groups_per_step = buffer, groups_per_step
        self._leasing: dict[PolicyVersion, deque[asyncio.Future[None]]] = {}
        self._taking: dict[asyncio.Future[None], PolicyVersion] = {}

    async def room(self, version: PolicyVersion) -> None:
        """Wait until there is room at ``version`` or a newer one is published; for ever if one is published already."""
        woken = asyncio.get_running_loop().create_future()
        if version < self._buffer.version:
            await woken
        waiting = self._leasing.setdefault(version, deque())
        waiting.append(woken)
        try:
            await woken
        except asyncio.CancelledError:
            if woken.done() and not woken.cancelled():
                self.wake()  # the room that woke this one belongs to another
            raise
        finally:
            if woken in waiting:
                waiting.remove(woken)
            if not self._leasing.get(version, waiting):
                self._leasing.pop(version, None)

    async def batch(self, version: PolicyVersion) -> None:
        """Wait until the batch of ``version`` can be taken, or groups have become too old for it and must go first."""
        woken = asyncio.get_running_loop().create_future()
        self._taking[woken] = version
        try:
            await woken
        finally:
            del self._taking[woken]

    def wake(self) -> None:
        """Wake those for whom the buffer, which has changed, has something."""
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
        """Raise ``error`` in everybody who waits now."""
        for woken in (*self._taking, *(woken for waiting in self._leasing.values() for woken in waiting)):
            if not woken.done():
                woken.set_exception(error)
