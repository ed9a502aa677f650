"""Calls of an object's asynchronous methods over TCP: what goes over the wire between :mod:`asyncrl.rpc.client` and
:mod:`asyncrl.rpc.server`.

Made for the buffer's service, which every trajectory asks: a call through Ray takes ten times as long and as much of the
processor. What always holds: arguments and results are msgpack of the types that the method is annotated with, and errors are
a name and values, so nothing that arrives is ever run.
"""

import asyncio
import inspect
import socket
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from asyncrl.core.errors import AsyncRLError, ComponentFailed

_LENGTH_BYTES = 4
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""While nothing is under way, a node that is gone without a word is noticed after a minute; calls have their own deadlines."""

encoder = msgspec.msgpack.Encoder()


class Endpoint(msgspec.Struct, frozen=True):
    """Where a server listens, and the token that shows it who may call."""

    host: str
    port: int
    token: bytes

    def __repr__(self) -> str:
        """Without the token."""
        return f"{self.host}:{self.port}"


class Signature:
    """How arguments and result of a method are read, by its annotations."""

    def __init__(self, method: Callable[..., Any]) -> None:
        hints = typing.get_type_hints(method)
        arguments = tuple(hints[name] for name in inspect.signature(method).parameters if name != "self")
        self.arguments: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(tuple.__class_getitem__(arguments))
        self.result: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(hints["return"])


def signatures(api: type) -> Mapping[str, Signature]:
    """The signatures of the public methods that the class ``api`` itself defines, by their names."""
    return {name: Signature(method) for name, method in vars(api).items() if inspect.isfunction(method) and name[0] != "_"}


class Call(msgspec.Struct, array_like=True):
    """A frame from the client: ``number`` tells the calls of a connection apart."""

    number: int
    method: str
    arguments: msgspec.Raw


class Answer(msgspec.Struct, array_like=True):
    """A frame from the server: ``content`` is the result of call ``number``, or a :class:`Failure` if it ``failed``."""

    number: int
    failed: bool
    content: msgspec.Raw


class Failure(msgspec.Struct, array_like=True):
    """An error: its class, what it was made of, and its text."""

    name: str
    arguments: list[Any]
    text: str

    @classmethod
    def of(cls, error: AsyncRLError) -> "Failure":
        """``error``, as far as it can be sent."""
        text = str(error)
        arguments = error.__reduce__()[1]
        try:
            encoder.encode(arguments)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return cls(ComponentFailed.__name__, [text], text)
        return cls(type(error).__name__, list(arguments), text)

    def error(self) -> AsyncRLError:
        """The error again; a ``ComponentFailed`` of the same text if its class is not known here."""
        known = _subclasses(AsyncRLError).get(self.name, ComponentFailed)
        try:
            error: AsyncRLError = known(*self.arguments)
        except (TypeError, ValueError, AttributeError):
            return ComponentFailed(self.text)
        return error if str(error) == self.text else ComponentFailed(self.text)


def _subclasses(of: type) -> dict[str, type]:
    found: dict[str, type] = {of.__name__: of}
    each: type
    for each in of.__subclasses__():
        found |= _subclasses(each)
    return found


class Frames(asyncio.Protocol):
    """A connection that carries frames, each its length and then as many bytes, in both directions.

    Attributes:
        longest: bytes that a frame from the other side may have; the connection ends with a longer one.
    """

    longest = (1 << 8 * _LENGTH_BYTES) - 1

    def __init__(self) -> None:
        self._received = bytearray()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The other side is there."""
        self._transport = typing.cast(asyncio.Transport, transport)
        connected = transport.get_extra_info("socket")
        for level, option, value in _KEEP_ALIVE:
            connected.setsockopt(level, option, value)

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        received, begin = self._received, 0
        received += data
        while len(received) >= begin + _LENGTH_BYTES and not self._transport.is_closing():
            length = int.from_bytes(received[begin : begin + _LENGTH_BYTES], "little")
            if length > self.longest:
                self.refuse()
                break
            end = begin + _LENGTH_BYTES + length
            if len(received) < end:
                break
            self.frame_received(bytes(received[begin + _LENGTH_BYTES : end]))
            begin = end
        del received[:begin]

    def frame_received(self, frame: bytes) -> None:
        """A whole frame is here."""
        raise NotImplementedError

    def send(self, frame: bytes) -> None:
        """Send a frame behind those that are on their way."""
        self._transport.write(len(frame).to_bytes(_LENGTH_BYTES, "little") + frame)

    def refuse(self) -> None:
        """End the connection at once; what is on its way is lost."""
        self._transport.abort()
