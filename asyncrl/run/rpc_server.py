"""Answers calls of an object's methods; see :mod:`asyncrl.run.rpc`.

What always holds: every call is answered by what the method returned or raised, as long as its connection lasts; who does not
know the token is not heard.
"""

import asyncio
import hmac
import logging
import pickle
import secrets
from collections.abc import Mapping

import msgspec

from asyncrl.core.errors import AsyncRLError, ComponentFailed
from asyncrl.run.rpc import Answer, Call, Endpoint, Frames, Signature, encoder

logger = logging.getLogger(__name__)

_TOKEN_BYTES = 32
_INTRODUCTION_S = 10.0
"""How long one who connects may take to show the token."""

_calls = msgspec.msgpack.Decoder(Call)


class RpcServer:
    """Serves methods of an object, all calls at once, within the event loop that started it.

    Args:
        served: the object. A method that nobody waits for any more, since the connection was lost, is cancelled.
        methods: what may be called.
        name: of the object, for messages.
    """

    def __init__(self, served: object, methods: Mapping[str, Signature], name: str) -> None:
        self._served, self._methods, self._name = served, methods, name
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._listening: asyncio.Server | None = None

    async def start(self, host: str) -> Endpoint:
        """Listen on a free port of ``host``."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(lambda: _Connection(self, self._token), host, 0)
        return Endpoint(host, self._listening.sockets[0].getsockname()[1], self._token)

    async def answer(self, call: Call) -> Answer:
        """Do what ``call`` asks for."""
        try:
            arguments = self._methods[call.method].arguments.decode(call.arguments)
            result = await getattr(self._served, call.method)(*arguments)
            return Answer(call.number, False, msgspec.Raw(encoder.encode(result)))
        except AsyncRLError as error:
            return _failure(call, error)
        except Exception as error:
            # A bug, and the client's to hear of: it would wait in vain.
            logger.exception("%s (%s)", self._name, call.method)
            return _failure(call, ComponentFailed(f"{self._name} ({call.method}): {type(error).__name__}: {error}"))

    def note_stranger(self, address: object) -> None:
        """Somebody without the token was turned away."""
        logger.warning("%s: %s connected and did not know the token", self._name, address)

    def close(self) -> None:
        """Take no more connections; those that are there go on."""
        if self._listening is not None:
            self._listening.close()


def _failure(call: Call, error: AsyncRLError) -> Answer:
    return Answer(call.number, True, msgspec.Raw(encoder.encode(pickle.dumps(error))))


class _Connection(Frames):
    """One client, which introduces itself by the token."""

    def __init__(self, server: RpcServer, token: bytes) -> None:
        super().__init__()
        self._server, self._token = server, token
        self._introduced = False
        self._answering: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._patience = asyncio.get_running_loop().call_later(_INTRODUCTION_S, self._turn_away)

    def announced(self, length: int) -> None:
        if not self._introduced and length != _TOKEN_BYTES:
            self._turn_away()  # before any more of it is kept

    def frame_received(self, frame: bytes) -> None:
        if self._introduced:
            task = asyncio.create_task(self._answer(_calls.decode(frame)))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif hmac.compare_digest(frame, self._token):
            self._introduced = True
            self._patience.cancel()
        else:
            self._turn_away()

    def _turn_away(self) -> None:
        self._server.note_stranger(self._transport.get_extra_info("peername"))
        self._transport.abort()

    async def _answer(self, call: Call) -> None:
        self.send(encoder.encode(await self._server.answer(call)))

    def connection_lost(self, error: Exception | None) -> None:
        self._patience.cancel()
        for task in self._answering:
            task.cancel()
