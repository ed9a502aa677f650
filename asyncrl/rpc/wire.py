"""The wire format of calls over TCP between :mod:`asyncrl.rpc.client` and :mod:`asyncrl.rpc.server`.

Made for the buffer's service, which is called for every trajectory: a call through Ray takes ten times as long, and ten times as
much processor time. What always holds: arguments and results are msgpack of the types in the method's annotations, and errors
are a name and values, so nothing that arrives is ever executed.
"""

import asyncio
import hashlib
import inspect
import socket
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from asyncrl.core.errors import AsyncRLError, ComponentFailed
from asyncrl.core.network.tls import TlsKeys

_LENGTH_BYTES = 4
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""Notices after a minute that the node at the other end of an idle connection is gone; calls have their own deadlines."""

encoder = msgspec.msgpack.Encoder()


class Endpoint(msgspec.Struct, frozen=True):
    """The address of a server, the token that its clients must show, and the keys if the connection is to be encrypted."""

    host: str
    port: int
    token: bytes
    tls: TlsKeys | None = None

    def __repr__(self) -> str:
        """Show the address without the token."""
        return f"{self.host}:{self.port}"


class Signature:
    """Decoders for the arguments and the result of a method, made from its annotations, and these as text."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.text = str(inspect.signature(method))
        hints = typing.get_type_hints(method)
        arguments = tuple(hints[name] for name in inspect.signature(method).parameters if name != "self")
        self.arguments: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(tuple.__class_getitem__(arguments))
        self.result: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(hints["return"])


def signatures(api: type) -> Mapping[str, Signature]:
    """Return the signatures of the public methods that class ``api`` itself defines, by name."""
    return {name: Signature(method) for name, method in vars(api).items() if inspect.isfunction(method) and name[0] != "_"}


class Call(msgspec.Struct, array_like=True):
    """A frame from the client; ``number`` identifies the call on its connection."""

    number: int
    method: str
    arguments: msgspec.Raw


class Answer(msgspec.Struct, array_like=True):
    """A frame from the server; ``content`` is the result of call ``number``, or a :class:`Failure` if it ``failed``."""

    number: int
    failed: bool
    content: msgspec.Raw


def protocol_of(methods: Mapping[str, Signature]) -> str:
    """Return what is the same in two versions of this package that understand each other's calls of ``methods``."""
    calls = [f"{name}{signature.text}" for name, signature in sorted(methods.items())]
    frames = [f"{frame.__name__}{inspect.signature(frame)}" for frame in (Call, Answer, Failure)]
    return hashlib.sha256("\n".join(calls + frames).encode()).hexdigest()[:8]


class Failure(msgspec.Struct, array_like=True):
    """An error: the names of its class and of those that this one extends, the arguments of its constructor, and its text."""

    names: list[str]
    arguments: list[Any]
    text: str

    @classmethod
    def of(cls, error: AsyncRLError) -> "Failure":
        """Describe ``error``. If its arguments cannot be sent, describe a ``ComponentFailed`` with the same text."""
        text = str(error)
        arguments = error.__reduce__()[1]
        try:
            encoder.encode(arguments)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return cls([ComponentFailed.__name__], [text], text)
        own = [each for each in type(error).__mro__ if issubclass(each, AsyncRLError) and each is not AsyncRLError]
        return cls([each.__name__ for each in own], list(arguments), text)

    def error(self) -> AsyncRLError:
        """Rebuild the error, of the first of its classes that this process knows, or a ``ComponentFailed`` with the same text if
        that is not possible."""
        subclasses = _subclasses(AsyncRLError)
        known = next((subclasses[name] for name in self.names if name in subclasses), ComponentFailed)
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
    """A connection that carries frames in both directions; a frame is a length and that many bytes.

    Attributes:
        longest: the most bytes of a frame from the other side; a longer frame ends the connection.
    """

    longest = (1 << 8 * _LENGTH_BYTES) - 1

    def __init__(self) -> None:
        self._received = bytearray()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the connection."""
        self._transport = typing.cast(asyncio.Transport, transport)
        connected = transport.get_extra_info("socket")
        for level, option, value in _KEEP_ALIVE:
            connected.setsockopt(level, option, value)

    def data_received(self, data: bytes) -> None:
        """Take in bytes, and pass on the frames that are complete."""
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
        """Handle a complete frame."""
        raise NotImplementedError

    def send(self, frame: bytes) -> None:
        """Send a frame after those that are under way."""
        self._transport.write(len(frame).to_bytes(_LENGTH_BYTES, "little") + frame)

    def refuse(self) -> None:
        """End the connection at once; frames that are under way are lost."""
        self._transport.abort()
