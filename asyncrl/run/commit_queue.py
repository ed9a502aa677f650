"""Finished samples on their way to the buffer: while one call is under way, those that come meanwhile gather for the next.

So the number of calls follows the buffer's pace, not the episodes': one that is slow for a moment gets fewer and larger calls.
What always holds: calls do not overlap; a sample that was given to the queue is sent, even if the one who gave it has gone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from asyncrl.core.payload import FinishedSample


class CommitQueue:
    """Sends samples by ``send``, one call at a time. Lives within one event loop."""

    def __init__(self, send: Callable[[Sequence[FinishedSample]], Awaitable[None]]) -> None:
        self._send = send
        self._gathering: list[FinishedSample] = []
        self._call: asyncio.Task[None] | None = None
        """That takes along what is gathered; it waits for the call before."""

    async def commit(self, sample: FinishedSample) -> None:
        """Returns when the call that took ``sample`` along was answered; raises what that call raised."""
        if not self._gathering:
            self._call = asyncio.create_task(self._send_gathered(self._call), name="committing samples")
        self._gathering.append(sample)
        assert self._call is not None
        await asyncio.shield(self._call)

    async def _send_gathered(self, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait({before})
        samples, self._gathering = self._gathering, []
        await self._send(samples)
