"""The wire format between :mod:`asyncrl.weights.tcp.chunk_server` and :mod:`asyncrl.weights.tcp.chunk_fetch`.

A client shows the run's secret, is welcomed, and then asks for one chunk after the other. What always holds: what arrives is
sizes, numbers and bytes, so that nothing of it is ever executed; and a chunk counts only if its bytes have the checksum sent with
it.
"""

import socket
import struct
import time
from enum import IntEnum
from typing import NamedTuple

from asyncrl.core.errors import AsyncRLError

SECRET_BYTES = 32
CHUNK_BYTES = 1 << 20
"""A chunk fits a core's cache, where its checksum is computed right after it arrived; larger ones were slower."""
WELCOME = b"W"
WAITING_S = 2.0
"""While a chunk has not reached the server itself, it says so this often; it is alive then."""
SILENCE_S = 10.0
"""A connection on which nothing arrives for so long is given up."""

REQUEST = struct.Struct(">QIQ")
"""Asks for a chunk: policy version, number of the file in the publication, number of the chunk in the file."""
ANSWER = struct.Struct(">BII")
"""Precedes a chunk: an :class:`Answer`, number of bytes that follow, their CRC-32."""
_LENGTH = struct.Struct(">I")


class Answer(IntEnum):
    """What a server says when it is asked for a chunk."""

    CHUNK = 0
    """The bytes follow."""
    WAITING = 1
    """It has not arrived here yet; another answer follows."""
    GONE = 2
    """It was overwritten by a later version, or will never arrive."""


class Address(NamedTuple):
    """Where a chunk server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class BrokenConnection(AsyncRLError):
    """The other side, or the network to it, is gone, or it does not speak as it should."""


def introduction(secret: bytes) -> bytes:
    """What a client sends first: the secret as a frame of :mod:`asyncrl.rpc.wire`."""
    return _LENGTH.pack(len(secret)) + secret


def receive(connection: socket.socket, size: int) -> bytes:
    """Receive exactly ``size`` bytes.

    Raises:
        BrokenConnection: the connection ended before.
        OSError: it broke, or was silent for longer than its timeout.
    """
    received = bytearray(size)
    receive_into(connection, memoryview(received))
    return bytes(received)


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
        if not (more := connection.recv(size - len(received))):
            raise BrokenConnection("the connection ended")
        received += more
    return bytes(received)


def receive_into(connection: socket.socket, memory: memoryview) -> None:
    """Fill ``memory`` with what arrives, without a copy of it in this process. Raises what :func:`receive` raises."""
    while memory:
        received = connection.recv_into(memory)
        if received == 0:
            raise BrokenConnection("the connection ended")
        memory = memory[received:]
