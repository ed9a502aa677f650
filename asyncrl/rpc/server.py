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
from asyncrl.core.tls import TlsKeys
from asyncrl.rpc.wire import Answer, Call, Endpoint, Failure, Frames, Signature, encoder

logger = logging.getLogger(__name__)

_TOKEN_BYTES = 32
_INTRODUCTION_S = 10.0
"""Time in which a client must show the token."""

_COUNTING_S = 60.0
"""Interval in which clients without the token are counted before one line about them is logged."""

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
        self.strangers = _Strangers(name)
        self._listening: asyncio.Server | None = None

    async def start(self, host: str) -> Endpoint:
        """Listen on a free port of ``host``, an address of this node.

        Raises:
            ComponentFailed: ``host`` is not an address of this node.
        """
        loop = asyncio.get_running_loop()
        tls, patience = (None, None) if self._tls is None else (self._tls.server(), _INTRODUCTION_S)
        try:
            self._listening = await loop.create_server(
                partial(_Connection, self), host, 0, ssl=tls, ssl_handshake_timeout=patience
            )
        except OSError as error:
            remedy = "start Ray on this node with the --node-ip-address of one of its own interfaces"
            raise ComponentFailed(f"{self.name} cannot listen at {host}: {error.strerror}; {remedy}") from error
        return Endpoint(host, self._listening.sockets[0].getsockname()[1], self.token, self._tls)

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
            failure = Failure.of(ComponentFailed(f"{self.name} ({call.method}): {type(error).__name__}: {error}"))
        return Answer(call.number, True, msgspec.Raw(encoder.encode(failure)))

    def close(self) -> None:
        """Accept no more connections; existing ones go on."""
        if self._listening is not None:
            self._listening.close()
        self.strangers.close()


class _Strangers:
    """Logs clients that did not show the token: the first one at once, and after that one line a minute with their number."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._more, self._last = 0, ""
        self._counting: asyncio.TimerHandle | None = None

    def turned_away(self, address: object) -> None:
        """Count one more connection that was turned away."""
        if self._counting is None:
            logger.warning("%s: %s connected and did not show the token", self._name, address)
            self._count_for_a_while()
        else:
            self._more += 1
            self._last = str(address)

    def _count_for_a_while(self) -> None:
        self._counting = asyncio.get_running_loop().call_later(_COUNTING_S, self._sum_up)

    def _sum_up(self) -> None:
        self._counting = None
        if self._more:
            self._tell()
            self._count_for_a_while()

    def _tell(self) -> None:
        text = "%s: %d more connected within %g s and did not show the token, the last from %s"
        logger.warning(text, self._name, self._more, _COUNTING_S, self._last)
        self._more = 0

    def close(self) -> None:
        """Log those that are not logged yet."""
        if self._counting is not None:
            self._counting.cancel()
        if self._more:
            self._tell()


class _Connection(Frames):
    """The connection of one client, which must show the token first."""

    def __init__(self, server: RpcServer) -> None:
        super().__init__()
        self._server = server
        self._introduced = False
        self._answering: set[asyncio.Task[None]] = set()
        self.longest = _TOKEN_BYTES
        self._connected = False
        # From here on, and not from connection_made(), which is not called for who shows no certificate.
        self._patience = asyncio.get_running_loop().call_later(_INTRODUCTION_S, self._out_of_patience)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connected = True

    def _out_of_patience(self) -> None:
        if self._connected:
            self.refuse()
        else:
            self._server.strangers.turned_away("somebody without a certificate of the run")

    def frame_received(self, frame: bytes) -> None:
        if self._introduced:
            task = asyncio.create_task(self._answer(_calls.decode(frame)))
            self._answering.add(task)
            task.add_done_callback(self._answered)
        elif hmac.compare_digest(frame, self._server.token):
            self._introduced, self.longest = True, Frames.longest
            self._patience.cancel()
        else:
            self.refuse()

    def refuse(self) -> None:
        if not self._introduced:
            self._server.strangers.turned_away(self._transport.get_extra_info("peername"))
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
        self._patience.cancel()
        for task in self._answering:
            task.cancel()
