"""What an agent asked for in one episode and what it got, kept with the episode so that it can be replayed.

What always holds: a request is kept as its client sent it and its answer as the client got it, whole or not at all. Requests that
a library sent again are kept once, as they were answered once. Each request holds the whole conversation before it, which
compression takes back: what is kept of an episode grows about as its conversation does.
"""

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from asyncrl.core.errors import AsyncRLError
from asyncrl.envs.played_by_agent import GivenToAgent
from asyncrl.generators.gateway.matching import Step

LARGEST = 2**28
"""Bytes of requests and answers from which on no more of an episode are kept."""
UNANSWERED = 0
"""The status of a request whose client had left before there was an answer."""
_CODEC = "zstd"
_LENGTH_BYTES = 4


class Exchange(msgspec.Struct, frozen=True, array_like=True):
    """A request and its answer.

    Attributes:
        path: method and path below the episode's address, such as ``POST v1/chat/completions``.
        arrived, ended: when the request came and when it had its answer, in the order of these events of the episode.
        asked: the request's body.
        status: HTTP's; :data:`UNANSWERED` if there was no answer.
        is_stream: whether the answer was server-sent events.
        answered: the answer's body.
        turn: its number in :attr:`Traffic.steps`; None if it had no place among the streams.
    """

    path: str
    arrived: int
    ended: int
    asked: bytes
    status: int
    is_stream: bool
    answered: bytes
    turn: int | None


class _End(msgspec.Struct, frozen=True, array_like=True):
    """What stands after the exchanges."""

    given: GivenToAgent
    steps: Sequence[tuple[Step, int]]
    is_whole: bool


class Traffic(msgspec.Struct, frozen=True):
    """The traffic of one episode.

    Attributes:
        exchanges: in the order in which the requests came.
        given: what the agent was started with.
        steps: what happened to the requests' places, see :attr:`asyncrl.generators.gateway.matching.Streams.steps`.
        is_whole: whether all of it was kept.
    """

    exchanges: tuple[Exchange, ...]
    given: GivenToAgent
    steps: tuple[tuple[Step, int], ...]
    is_whole: bool

    @property
    def taken_back(self) -> frozenset[int]:
        """The turns whose answers never reached the agent."""
        return frozenset(turn for step, turn in self.steps if step is Step.TAKEN_BACK)

    @classmethod
    def read(cls, kept: bytes) -> "Traffic":
        """Read what :meth:`TrafficRecorder.kept` returned.

        Raises:
            AsyncRLError: it is damaged.
        """
        try:
            with pa.CompressedInputStream(pa.BufferReader(kept), _CODEC) as stream:
                *exchanges, end = _frames(memoryview(stream.read()))
            last = msgspec.msgpack.decode(end, type=_End)
            read = [msgspec.msgpack.decode(frame, type=Exchange) for frame in exchanges]
        except (pa.ArrowException, OSError, ValueError) as error:  # msgspec's own are ValueErrors
            raise AsyncRLError(f"the kept traffic of an episode is damaged: {error}; replay another episode") from error
        return cls(tuple(sorted(read, key=lambda each: each.arrived)), last.given, tuple(last.steps), last.is_whole)


class TrafficRecorder:
    """Keeps the traffic of one episode, compressed as it comes.

    Args:
        largest: bytes of requests and answers from which on no more are kept.
    """

    def __init__(self, largest: int = LARGEST) -> None:
        self._sink = pa.BufferOutputStream()
        self._stream = pa.CompressedOutputStream(self._sink, _CODEC)
        self._left, self._events, self._is_whole = largest, 0, True

    def event(self) -> int:
        """Return the number of something that happens now."""
        self._events += 1
        return self._events

    def add(self, exchange: Exchange) -> None:
        """Keep a request and its answer, if there is room for all of it and for all before."""
        self._left -= len(exchange.asked) + len(exchange.answered)
        self._is_whole &= self._left >= 0
        if self._is_whole:
            self._write(exchange)

    def kept(self, given: GivenToAgent, steps: Sequence[tuple[Step, int]]) -> bytes:
        """End the recording; returns all of it."""
        self._write(_End(given, steps, self._is_whole))
        self._stream.close()
        kept: bytes = self._sink.getvalue().to_pybytes()
        return kept

    def _write(self, frame: msgspec.Struct) -> None:
        encoded = msgspec.msgpack.encode(frame)
        self._stream.write(len(encoded).to_bytes(_LENGTH_BYTES) + encoded)


def _frames(content: memoryview) -> list[memoryview]:
    frames, place = list[memoryview](), 0
    while place < len(content):
        start = place + _LENGTH_BYTES
        place = start + int.from_bytes(content[place:start])
        frames.append(content[start:place])
    return frames
