"""Calls of an object's asynchronous methods over TCP, as they are written on the wire: how the buffer's service is asked.

A call through Ray takes ten times as long, and most of that is work. What always holds: arguments and results are msgpack of the
types that the method is annotated with; errors, which only the server sends, are pickles of the project's own.
"""

import asyncio
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

_LENGTH_BYTES = 4

encoder = msgspec.msgpack.Encoder()


class Endpoint(msgspec.Struct, frozen=True):
    """Where a server listens, and the secret that it serves for."""

    host: str
    port: int
    token: bytes


class Signature:
    """How arguments and result of a method are read, by its annotations."""

    def __init__(self, method: Callable[..., Any]) -> None:
        hints = typing.get_type_hints(method)
        arguments = tuple(hints[name] for name in inspect.signature(method).parameters if name != "self")
        self.arguments: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(tuple.__class_getitem__(arguments))
        self.result: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(hints["return"])


def signatures(of: type, methods: Iterable[str]) -> Mapping[str, Signature]:
    """Those of some ``methods`` of a class."""
    return {method: Signature(getattr(of, method)) for method in methods}


class Call(msgspec.Struct, array_like=True):
    """A frame from the client: ``number`` tells the calls of a connection apart."""

    number: int
    method: str
    arguments: msgspec.Raw


class Answer(msgspec.Struct, array_like=True):
    """A frame from the server: ``content`` is the result of call ``number``, or, if it ``failed``, the pickled error."""

    number: int
    failed: bool
    content: msgspec.Raw


class Frames(asyncio.Protocol):
    """A connection that carries frames, each its length and then as many bytes, in both directions."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The other side is there."""
        self._transport = typing.cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        received, begin = self._received, 0
        received += data
        while len(received) >= begin + _LENGTH_BYTES and not self._transport.is_closing():
            length = int.from_bytes(received[begin : begin + _LENGTH_BYTES], "little")
            self.announced(length)
            end = begin + _LENGTH_BYTES + length
            if len(received) < end:
                break
            self.frame_received(bytes(received[begin + _LENGTH_BYTES : end]))
            begin = end
        del received[:begin]

    def announced(self, length: int) -> None:
        """A frame of ``length`` bytes begins; told again while it is not whole."""

    def frame_received(self, frame: bytes) -> None:
        """A whole frame is here."""
        raise NotImplementedError

    def send(self, frame: bytes) -> None:
        """Send a frame behind those that are on their way."""
        self._transport.write(len(frame).to_bytes(_LENGTH_BYTES, "little") + frame)

    def close(self) -> None:
        """End the connection, once what is on its way was sent."""
        self._transport.close()
