"""Things on their way to somebody else's call: while one is under way, those that come meanwhile gather for the next.

So the number of calls follows the pace of the one who is called, not that of the callers: who is slow for a moment gets fewer
and larger calls. What always holds: no more calls overlap than may; what was given to a gathering is sent, even if the one who
gave it has gone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Gathering(Generic[T, R]):
    """Sends items by ``send``, which answers each of them, in order. Lives within one event loop.

    Args:
        calls: of ``send`` at once.
        limit: items in one call; by default as many as there are.
    """

    def __init__(
        self, send: Callable[[Sequence[T]], Awaitable[Sequence[R]]], *, calls: int = 1, limit: int | None = None
    ) -> None:
        self._send, self._at_once, self._limit = send, calls, limit
        self._gathering: list[tuple[T, asyncio.Future[R]]] = []
        self._sending: list[asyncio.Task[None]] = []

    async def send(self, item: T) -> R:
        """The answer to ``item``; raises what the call raised that took it along."""
        answered = asyncio.get_running_loop().create_future()
        self._gathering.append((item, answered))
        self._sending = [sending for sending in self._sending if not sending.done()]
        if len(self._sending) < self._at_once:
            self._sending.append(asyncio.create_task(self._send_all(), name="sending what has gathered"))
        return await answered

    async def _send_all(self) -> None:
        while self._gathering:
            limit = self._limit or len(self._gathering)
            gathered, self._gathering = self._gathering[:limit], self._gathering[limit:]
            call = asyncio.ensure_future(self._send([item for item, _ in gathered]))  # noqa: RUF006 - awaited here
            await asyncio.wait({call})
            for number, (_, answered) in enumerate(gathered):
                if answered.done():
                    continue  # its caller has gone
                if call.cancelled():
                    answered.cancel()
                elif error := call.exception():
                    answered.set_exception(error)
                else:
                    answered.set_result(call.result()[number])
