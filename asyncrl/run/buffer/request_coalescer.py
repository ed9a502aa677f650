"""Collects single requests into larger calls: requests that come while a call is under way wait for the next one.

So the number of calls adapts to how fast they are answered: a server that is slow for a while gets fewer, larger ones.
What always holds: no more calls overlap than are allowed; every caller who waits gets an answer or an error.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from asyncrl.core.errors import ComponentFailed

T = TypeVar("T")
R = TypeVar("R")


class RequestCoalescer(Generic[T, R]):
    """Sends items with ``send``, which answers each of them, in order. Used within one event loop.

    Args:
        calls: how many calls of ``send`` may overlap.
        limit: the most items in one call; by default as many as wait.
        for_nobody: whether to send items whose callers have gone before the call is made.
    """

    def __init__(
        self,
        send: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        calls: int = 1,
        limit: int | None = None,
        for_nobody: bool = True,
    ) -> None:
        self._send, self._at_once, self._limit, self._for_nobody = send, calls, limit, for_nobody
        self._gathering: list[tuple[T, asyncio.Future[R]]] = []
        self._sending: list[asyncio.Task[None]] = []

    async def send(self, item: T) -> R:
        """Return the answer to ``item``; raises what its call raised, or ``ComponentFailed`` if answers are missing."""
        answered: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._gathering.append((item, answered))
        self._sending = [sending for sending in self._sending if not sending.done()]
        if len(self._sending) < self._at_once:
            self._sending.append(asyncio.create_task(self._send_all(), name="sending what has gathered"))
        return await answered

    def _next(self) -> list[tuple[T, "asyncio.Future[R]"]]:
        """Take the items of the next call."""
        waiting = self._gathering if self._for_nobody else [one for one in self._gathering if not one[1].done()]
        limit = self._limit or len(waiting)
        gathered, self._gathering = waiting[:limit], waiting[limit:]
        return gathered

    async def _send_all(self) -> None:
        while gathered := self._next():
            call = asyncio.ensure_future(self._send([item for item, _ in gathered]))  # noqa: RUF006 - awaited here
            await asyncio.wait({call})
            error = None if call.cancelled() else call.exception()
            if not (call.cancelled() or error) and len(call.result()) != len(gathered):
                error = ComponentFailed(f"{len(call.result())} answers came for {len(gathered)} items")
            for number, (_, answered) in enumerate(gathered):
                if answered.done():
                    continue  # its caller has gone
                if call.cancelled():
                    answered.cancel()
                elif error:
                    answered.set_exception(error)
                else:
                    answered.set_result(call.result()[number])
