"""The server of an object: answers calls of the object's methods; see :mod:`asyncrl.rpc.wire`.

What always holds: every call is answered with what the method returned or raised, or its connection ends; the connection of a
client that does not show the token, or no certificate where that is asked for, is ended.
"""

import asyncio
import hmac
import logging
import secrets
from collections.abc import Mapping
from functools import partial

import msgspec

from asyncrl.core.errors import AsyncRLError, ComponentFailed
from asyncrl.core.files.file_errors import explained
from asyncrl.core.network.listener import Listener
from asyncrl.core.network.tls import TlsKeys
from asyncrl.rpc.wire import Answer, Call, Endpoint, Failure, Frames, Signature, encoder

logger = logging.getLogger(__name__)

_TOKEN_BYTES = 32
_calls = msgspec.msgpack.Decoder(Call)


class RpcServer:
    """Serves methods of an object, all calls at the same time, within the event loop that started it.

    Args:
        served: the object. When a connection is lost, the method calls that came over it are cancelled.
        tls: the keys if connections are encrypted.
    """

    def __init__(self, served: object, methods: Mapping[str, Signature], name: str, tls: TlsKeys | None = None) -> None:
        self._served, self._methods, self.name, self._tls = served, methods, name, tls
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        self.listener = Listener(name, partial(_Connection, self), logger, tls)

    async def start(self, host: str) -> Endpoint:
        """Listen on a free port of ``host``, an address of this node.

        Raises:
            ComponentFailed: ``host`` is not an address of this node.
        """
        try:
            port = await self.listener.start(host, 0)
        except OSError as error:
            remedy = "start Ray on this node with the --node-ip-address of one of its own interfaces"
            raise ComponentFailed(f"{self.name} cannot listen at {host}: {error.strerror}; {remedy}") from error
        return Endpoint(host, port, self.token, self._tls)

    async def answer(self, call: Call) -> Answer:
        """Make the call, and return its result or error."""
        try:
            arguments = self._methods[call.method].arguments.decode(call.arguments)
            result = await getattr(self._served, call.method)(*arguments)
            return Answer(call.number, False, msgspec.Raw(encoder.encode(result)))
        except AsyncRLError as error:
            failure = Failure.of(error)
        except Exception as error:
            # A bug. The caller must be told, or it would wait for an answer that never comes.
            logger.exception("%s (%s)", self.name, call.method)
            told = explained(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            failure = Failure.of(ComponentFailed(f"{self.name} ({call.method}): {told}"))
        return Answer(call.number, True, msgspec.Raw(encoder.encode(failure)))

    def close(self) -> None:
        """Accept no more connections; existing ones go on."""
        self.listener.close()


class _Connection(Frames):
    """The connection of one client, which must show the token first."""

    def __init__(self, server: RpcServer) -> None:
        super().__init__()
        self._server = server
        self._introduced = False
        self._answering: set[asyncio.Task[None]] = set()
        self.longest = _TOKEN_BYTES

    def frame_received(self, frame: bytes) -> None:
        if self._introduced:
            task = asyncio.create_task(self._answer(_calls.decode(frame)))
            self._answering.add(task)
            task.add_done_callback(self._answered)
        elif hmac.compare_digest(frame, self._server.token):
            self._introduced, self.longest = True, Frames.longest
            self._server.listener.known(self)
        else:
            self.refuse()

    def refuse(self) -> None:
        self._server.listener.gone(self, "did not show the token")
        super().refuse()

    async def _answer(self, call: Call) -> None:
        self.send(encoder.encode(await self._server.answer(call)))

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        error = None if task.cancelled() else task.exception()
        if (task.cancelled() or error) and not self._transport.is_closing():
            logger.error("%s: a call could not be answered, so its connection ends", self._server.name, exc_info=error)
            self.refuse()

    def connection_lost(self, error: Exception | None) -> None:
        self._server.listener.gone(self, "did not show the token")
        for task in self._answering:
            task.cancel()
