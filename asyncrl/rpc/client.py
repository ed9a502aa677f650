"""The client of a served object: calls the object's methods in another process; see :mod:`asyncrl.rpc.wire`.

What always holds: every caller gets its answer, or is told at once that the connection ended. There are no deadlines here: only
the caller knows how long an answer may take.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from asyncrl.core.errors import AsyncRLError, ComponentFailed
from asyncrl.rpc.wire import Answer, Call, Endpoint, Failure, Frames, Signature, encoder

P = ParamSpec("P")
R = TypeVar("R")

_answers = msgspec.msgpack.Decoder(Answer)
_failures = msgspec.msgpack.Decoder(Failure)


class ConnectionLost(AsyncRLError):
    """The other side, or the network to it, is gone. Whether it received the call is not known."""


class RpcClient(Frames):
    """One connection to a server. Made by :meth:`connect`; lives within one event loop."""

    def __init__(self, methods: Mapping[str, Signature]) -> None:
        super().__init__()
        self._methods = methods
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._lost = False

    @classmethod
    async def connect(cls, endpoint: Endpoint, methods: Mapping[str, Signature]) -> "RpcClient":
        """Connect to ``endpoint``, whose server has these ``methods``.

        Raises:
            ConnectionLost: no server listens there, or it has keys of another run.
        """
        loop = asyncio.get_running_loop()
        tls = None if endpoint.tls is None else endpoint.tls.client()
        try:
            _, client = await loop.create_connection(lambda: cls(methods), endpoint.host, endpoint.port, ssl=tls)
        except OSError as error:
            raise ConnectionLost(f"{endpoint} cannot be reached: {error}") from error
        client.send(endpoint.token)
        return client

    async def call(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call ``method`` of the served object and return its result.

        Args:
            method: from the class that the server's methods were read from, e.g. ``BufferApi.take``.
            args: arguments of the call; keyword arguments are not sent.

        Raises:
            ConnectionLost: there will be no answer.
            AsyncRLError: the error that the method raised.
        """
        if self._lost:
            raise ConnectionLost("the connection had already ended")
        name, number = method.__name__, next(self._numbers)
        answered = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self.send(encoder.encode(Call(number, name, msgspec.Raw(encoder.encode(args)))))
            answer = await answered
        finally:
            del self._waiting[number]
        if answer.failed:
            raise _failures.decode(answer.content).error()
        try:
            result: R = self._methods[name].result.decode(answer.content)
            return result
        except msgspec.DecodeError as error:
            raise ComponentFailed(f"{name} returned a value of another type than it declares: {error}") from error

    def frame_received(self, frame: bytes) -> None:
        """Give an answer to its caller, if the caller still waits."""
        answer = _answers.decode(frame)
        answered = self._waiting.get(answer.number)
        if answered is not None and not answered.done():
            answered.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell everybody who waits that there will be no answer."""
        self._lost = True
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(ConnectionLost("the connection ended before the answer"))

    def close(self) -> None:
        """Close the connection."""
        self.refuse()
