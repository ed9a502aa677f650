"""What an engine's worker and a learner rank tell each other about a broadcast, and how each waits for one.

A worker shows the rank's secret, says which worker of which engine it is, and then asks for one publication after the other. What
always holds: what arrives is never executed; every wait ends by a deadline, or as soon as the other side is gone.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from multiprocessing.connection import wait
from typing import TypeVar

import msgspec

from asyncrl.core.errors import AsyncRLError, DeadlineExceeded
from asyncrl.core.ids import PolicyVersion

T = TypeVar("T")

SECRET_BYTES = 32
WELCOME = b"W"
PIECE_BYTES = 64 << 20
"""The most bytes of one broadcast: as many lie on the sender's GPU at a time, and more would not make it faster."""
REMEDY = "see the logs of both; if NCCL cannot pass between their nodes, set weights.kind to ray, else raise deadlines.publish"
_LENGTH = struct.Struct(">I")
_LONGEST = 64 << 20

Extent = tuple[int, int]
"""The first byte, and the one after the last, of a part of a rank's file."""


class BrokenConnection(AsyncRLError):
    """The other side, or the network to it, is gone, or it does not speak as it should."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Who connects: worker number ``worker`` of ``workers`` of an engine, whose name no other engine has."""

    engine: str
    worker: int
    workers: int


class Request(msgspec.Struct, frozen=True, array_like=True):
    """Asks for a version. All workers of an engine ask for the same.

    Attributes:
        extents: which bytes of the rank's file they want, in this order; each is a broadcast.
        ready: whether this worker can take them now.
    """

    version: PolicyVersion
    extents: tuple[Extent, ...]
    ready: bool


class Answer(StrEnum):
    """What a rank answers all workers of an engine."""

    SEND = "send"
    """The broadcasts follow."""
    LATER = "later"
    """Not all workers are ready."""
    GONE = "gone"
    """The rank does not hold this version."""


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The answer; with ``token``, all join a group first (:class:`asyncrl.weights.nccl.collective.Collective`)."""

    answer: Answer
    token: bytes = b""


def pieces(extent: Extent) -> list[Extent]:
    """Cut an extent into pieces of at most :data:`PIECE_BYTES`."""
    begin, end = extent
    return [(at, min(at + PIECE_BYTES, end)) for at in range(begin, end, PIECE_BYTES)]


def introduction(secret: bytes) -> bytes:
    """What a client sends first: the secret as a frame of :mod:`asyncrl.rpc.wire`."""
    return _LENGTH.pack(len(secret)) + secret


def receive_by(connection: socket.socket, size: int, ends: float) -> bytes:
    """Receive exactly ``size`` bytes by ``ends`` on the monotonic clock, however slowly they come. Sets the connection's timeout.

    Raises:
        BrokenConnection: the connection ended before.
        OSError: it broke, or the time was over.
    """
    received = bytearray()
    while len(received) < size:
        if (seconds := ends - time.monotonic()) <= 0:
            raise TimeoutError("the time was over")
        connection.settimeout(seconds)
        received += _some(connection, size - len(received))
    return bytes(received)


def receive(connection: socket.socket, size: int) -> bytes:
    """Receive exactly ``size`` bytes.

    Raises:
        BrokenConnection: the connection ended before.
        OSError: it broke, or was silent for longer than its timeout.
    """
    received = bytearray()
    while len(received) < size:
        received += _some(connection, size - len(received))
    return bytes(received)


def _some(connection: socket.socket, most: int) -> bytes:
    if not (received := connection.recv(most)):
        raise BrokenConnection("the connection ended")
    return received


def tell(connection: socket.socket, message: msgspec.Struct) -> None:
    """Send a message.

    Raises:
        OSError: the connection broke.
    """
    encoded = msgspec.msgpack.encode(message)
    connection.sendall(_LENGTH.pack(len(encoded)) + encoded)


def hear(connection: socket.socket, kind: type[T]) -> T:
    """Receive a message.

    Raises:
        BrokenConnection: the connection ended, or what arrived is no such message.
        OSError: it broke, or was silent for longer than its timeout.
    """
    (length,) = _LENGTH.unpack(receive(connection, _LENGTH.size))
    if length > _LONGEST:
        raise BrokenConnection(f"a message of {length} bytes was announced; the longest is {_LONGEST}")
    try:
        return msgspec.msgpack.decode(receive(connection, length), type=kind)
    except msgspec.MsgspecError as error:
        raise BrokenConnection(f"what arrived is no {kind.__name__}: {error}") from error


def supervised(work: Callable[[], T], others: Sequence[socket.socket], seconds: float, waiter: str, owner: str) -> T:
    """Call ``work``, which may hang, in a thread, and return what it returns. If this raises, the thread may go on.

    Args:
        others: connections to those who take part; none of them sends anything before its part is done.
        waiter, owner: who waits for whom, for errors.

    Raises:
        DeadlineExceeded: it took longer than ``seconds``.
        BrokenConnection: one of the others ended meanwhile, or ``work`` raised ``RuntimeError``, as collectives do.
    """
    ours, threads_own = socket.socketpair()
    returned: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        with threads_own:  # closing it tells that there is an outcome
            try:
                returned.append(work())
            except BaseException as error:  # noqa: BLE001 - raised by the caller
                raised.append(error)

    threading.Thread(target=run, name=f"{waiter}: {owner}", daemon=True).start()
    ends, watched = time.monotonic() + seconds, list(others)
    with ours:
        while True:
            ready = wait([ours, *watched], max(0.0, ends - time.monotonic()))
            if ours in ready:
                break
            if not ready:
                raise DeadlineExceeded(waiter, owner, seconds, REMEDY)
            for each in ready:
                assert isinstance(each, socket.socket)
                if not _has_sent(each):
                    raise BrokenConnection(f"{waiter}: {owner} ended in the middle of it")
                watched.remove(each)  # its part is done, and it asks for the next
    if raised:
        if isinstance(raised[0], RuntimeError):
            raise BrokenConnection(f"{waiter}: {owner}: {raised[0]}") from raised[0]
        raise raised[0]
    return returned[0]


def _has_sent(connection: socket.socket) -> bool:
    """Whether a connection that can be read from has sent something; it has ended otherwise."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except OSError:
        return False
