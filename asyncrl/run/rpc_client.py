"""Calls methods of an object in another process; see :mod:`asyncrl.run.rpc`.

What always holds: whoever waits for an answer gets it, or is told at once that the connection ended. There are no deadlines here:
only the caller knows how long an answer may take.
"""

import asyncio
import itertools
import pickle
from collections.abc import Mapping
from typing import Any

import msgspec

from asyncrl.core.errors import AsyncRLError
from asyncrl.run.rpc import Answer, Call, Endpoint, Frames, Signature, encoder

_answers = msgspec.msgpack.Decoder(Answer)


class ConnectionLost(AsyncRLError):
    """The other side, or the network to it, is gone; whether the call was heard is not known."""


class RpcClient:
    """One connection. Made by :meth:`connect`; lives within one event loop."""

    def __init__(self, methods: Mapping[str, Signature]) -> None:
        self._methods = methods
        self._connection = _Connection()
        self._numbers = itertools.count()

    @classmethod
    async def connect(cls, endpoint: Endpoint, methods: Mapping[str, Signature]) -> "RpcClient":
        """A connection to ``endpoint``, whose server has these ``methods``.

        Raises:
            ConnectionLost: nobody listens there.
        """
        client = cls(methods)
        try:
            await asyncio.get_running_loop().create_connection(lambda: client._connection, endpoint.host, endpoint.port)
        except OSError as error:
            raise ConnectionLost(f"{endpoint.host}:{endpoint.port} cannot be reached: {error}") from error
        client._connection.send(endpoint.token)
        return client

    async def call(self, method: str, *arguments: Any) -> Any:
        """What ``method`` returns.

        Raises:
            ConnectionLost: there is no answer, and there will be none.
            AsyncRLError: what the method raised.
        """
        number = next(self._numbers)
        frame = encoder.encode(Call(number, method, msgspec.Raw(encoder.encode(arguments))))
        answer = await self._connection.answer(number, frame)
        if answer.failed:
            # From the server whose token Ray brought us; Ray brings pickles from there, too.
            raise pickle.loads(msgspec.msgpack.decode(answer.content))
        return self._methods[method].result.decode(answer.content)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


class _Connection(Frames):
    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._lost = False

    async def answer(self, number: int, frame: bytes) -> Answer:
        """The answer to call ``number``, which is ``frame``."""
        if self._lost:
            raise ConnectionLost("the connection had ended before")
        answered = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self.send(frame)
            return await answered
        finally:
            del self._waiting[number]

    def frame_received(self, frame: bytes) -> None:
        answer = _answers.decode(frame)
        answered = self._waiting.get(answer.number)
        if answered is not None and not answered.done():  # else the one who asked has gone
            answered.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(ConnectionLost("the connection ended before the answer"))
