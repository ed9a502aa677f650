"""The attempts at the requests of one episode, so that a request that is sent again is not sampled again.

A client that lost the connection, or waited too long, sends the same request again. What always holds:

* it gets the answer of the first attempt if it says that it asks again, or if that answer has not reached anybody whole. Else the
  same words are another request, which samples afresh: agents ask the same thing twice on purpose;
* an attempt goes on for :data:`OUTLIVES_S` after its last client has left. Then it ends, and its turn is taken back if nobody has
  gone on from it;
* an attempt that failed answers nobody but those who waited for it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from asyncrl.generators.gateway.matching import Streams
from asyncrl.generators.gateway.protocols import Answer

OUTLIVES_S = 15.0
"""Seconds for which an attempt goes on without a client."""
_RETRY_COUNT, _KEY = "x-stainless-retry-count", "idempotency-key"
"""Headers by which the libraries of OpenAI and Anthropic say that they ask again."""


class Attempt:
    """One attempt at an answer, and the clients that wait for it."""

    def __init__(self, streams: Streams, answering: Coroutine[Any, Any, Answer], outlives_s: float) -> None:
        self._streams, self._outlives_s = streams, outlives_s
        self.task = asyncio.create_task(answering, name="answering a request")
        self.task.add_done_callback(_seen)
        self._waiting = 0
        self._has_arrived = self._is_over = False
        self._leaving: asyncio.TimerHandle | None = None

    @property
    def can_answer(self) -> bool:
        """Whether it has not failed or been given up."""
        if self._is_over or self.task.cancelled():
            return False
        return not self.task.done() or self.task.exception() is None

    @property
    def is_lost(self) -> bool:
        """Whether its answer has reached nobody, and nobody waits for it."""
        return not self._waiting and not self._has_arrived

    def join(self) -> None:
        """Wait for the answer."""
        self._waiting += 1
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def leave(self, *, has_arrived: bool) -> None:
        """Stop waiting; ``has_arrived`` says whether the answer reached the client whole."""
        self._waiting -= 1
        self._has_arrived |= has_arrived
        if self.is_lost and not self._is_over:
            self._leaving = asyncio.get_running_loop().call_later(self._outlives_s, self.end)

    def end(self) -> None:
        """Give up, unless the answer has arrived: take back the turn, or stop sampling it."""
        if self._leaving is not None:
            self._leaving.cancel()
        if self._is_over:
            return
        self._is_over = True
        if not self.task.done():
            self.task.cancel()
        elif self.is_lost and self.task.exception() is None and (turn := self.task.result().turn) is not None:
            self._streams.take_back(turn)


class Attempts:
    """The attempts of one episode.

    Args:
        outlives_s: seconds for which an attempt goes on without a client.
    """

    def __init__(self, streams: Streams, outlives_s: float = OUTLIVES_S) -> None:
        self._streams, self._outlives_s = streams, outlives_s
        self._latest: dict[bytes, Attempt] = {}
        self._keyed: dict[tuple[bytes, str], Attempt] = {}
        self._all: set[Attempt] = set()
        self.joined = 0

    def at(self, request: bytes, headers: Mapping[str, str], answering: Callable[[], Coroutine[Any, Any, Answer]]) -> Attempt:
        """Return the attempt that answers a request, and wait for it.

        Args:
            request: digest of what is asked.
            headers: those of HTTP, in any case.
            answering: begins a new attempt.
        """
        key = (request, headers.get(_KEY, ""))
        earlier = self._keyed.get(key) if key[1] else None
        if earlier is None and (latest := self._latest.get(request)) and (_says_again(headers) or latest.is_lost):
            earlier = latest
        if earlier is not None and earlier.can_answer:
            attempt = earlier
            self.joined += 1
        else:
            attempt = Attempt(self._streams, answering(), self._outlives_s)
            self._all.add(attempt)
            self._latest[request] = attempt
            if key[1]:
                self._keyed[key] = attempt
        attempt.join()
        return attempt

    async def end(self) -> None:
        """End all attempts whose answers have not arrived; returns when none is sampled any more."""
        for attempt in self._all:
            attempt.end()
        if self._all:
            await asyncio.wait({attempt.task for attempt in self._all})


def _says_again(headers: Mapping[str, str]) -> bool:
    """Whether a client says that it asks again."""
    return headers.get(_RETRY_COUNT, "0") != "0"


def _seen(task: "asyncio.Task[Answer]") -> None:
    """Look at a failure, of which clients are told, if there are any."""
    if not task.cancelled():
        task.exception()
