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
        self._gathering: list[tuple[FinishedSample, asyncio.Future[None]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def commit(self, sample: FinishedSample) -> None:
        """Returns when the call that took ``sample`` along was answered; raises what that call raised."""
        answered = asyncio.get_running_loop().create_future()
        self._gathering.append((sample, answered))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_all(), name="committing samples")
        await answered

    async def _send_all(self) -> None:
        while self._gathering:
            gathered, self._gathering = self._gathering, []
            call = asyncio.ensure_future(self._send([sample for sample, _ in gathered]))  # noqa: RUF006 - awaited here
            await asyncio.wait({call})
            for _, answered in gathered:
                if answered.done():
                    continue  # its caller has gone
                if call.cancelled():
                    answered.cancel()
                elif error := call.exception():
                    answered.set_exception(error)
                else:
                    answered.set_result(None)
