"""The buffer's service as its clients see it: each call bounded and named, but waiting for room on a full disk does not count."""

import asyncio
from collections.abc import Callable
from typing import Any

from asyncrl.core.deadline import deadline
from asyncrl.core.errors import ComponentFailed, DeadlineExceeded, ProcessDied
from asyncrl.rpc.client import ConnectionLost, RpcClient
from asyncrl.rpc.wire import Endpoint, signatures
from asyncrl.run.asking import ANSWER_DEADLINE_S, ask_buffer
from buffers.service import BufferService

METHODS = signatures(
    BufferService,
    (
        "lease",
        "commit",
        "fail",
        "renew",
        "lost",
        "report_pause",
        "take",
        "trained",
        "advance",
        "checkpointed",
        "statistics",
    ),
)
"""What may be asked of the buffer's service."""

PAUSE_CHECK_S = 10.0
"""How often a buffer that has not answered is asked whether it waits for its disk; a lease that waits for a ticket takes less."""
_REMEDY = "its process, or the network to it, is overloaded; see logs/buffer.log"


class BufferHandle:
    """Calls of one client, over one connection. Made by :meth:`connect`; lives within one event loop.

    A connection is not made a second time: whether the buffer heard a call that was under way is not known, and tickets on their
    way would be lost to everybody. So a client that loses it ends, and its tickets are issued again.

    Args:
        actor: the buffer's Ray handle.
        rpc: to its service.
        client: who calls, for error messages.
        note: told why a call has to wait for long, and when it goes on.
    """

    def __init__(self, actor: Any, rpc: RpcClient, client: str, note: Callable[[str], None]) -> None:
        self._actor, self._rpc, self._client, self._note = actor, rpc, client, note
        self._pause = ""
        self._closed = False

    @classmethod
    async def connect(cls, actor: Any, client: str, note: Callable[[str], None]) -> "BufferHandle":
        """A handle on the buffer of ``actor``, which is ready.

        Raises:
            DeadlineExceeded: it cannot be reached in time.
            ComponentFailed: it died, or its node lets nobody connect.
        """
        endpoint = await _endpoint(actor, "the buffer (endpoint)", client)
        remedy = "the nodes of the cluster must be able to connect to one another on every port, as Ray needs it, too"
        try:
            async with deadline(ANSWER_DEADLINE_S, waiter=client, owner=f"a connection to {endpoint}", remedy=remedy):
                return cls(actor, await RpcClient.connect(endpoint, METHODS), client, note)
        except ConnectionLost as error:
            raise ComponentFailed(f"{client} cannot connect to the buffer: {error}; {remedy}") from error

    async def call(self, method: str, *arguments: Any, seconds: float = ANSWER_DEADLINE_S) -> Any:
        """What the buffer's ``method`` answers.

        Raises:
            DeadlineExceeded: no answer for ``seconds`` in which the buffer was not paused.
            ComponentFailed: the buffer died, which no other can make up for.
            ProcessDied: the buffer lives, and this client lost its connection to it; another in its place may do its work.
        """
        of = f"the buffer ({method})"
        answering = asyncio.ensure_future(self._rpc.call(method, *arguments))
        try:
            await self._wait(answering, of, seconds)
            result = answering.result()
        except ConnectionLost as loss:
            raise await self._gone(of, loss) from loss
        finally:
            answering.cancel()
        if self._pause:
            self._pause = ""
            self._note("There is room again: the run goes on")
        return result

    async def _wait(self, answering: "asyncio.Future[Any]", of: str, seconds: float) -> None:
        clock, left = asyncio.get_running_loop().time, seconds
        while left > 0:
            begin = clock()
            await asyncio.wait({answering}, timeout=min(left, PAUSE_CHECK_S))
            if answering.done():
                return
            if reason := await self._paused(answering):
                self._paused_by(reason)
            else:
                left -= clock() - begin
        if not answering.done():
            raise DeadlineExceeded(self._client, of, seconds, _REMEDY)

    async def _paused(self, answering: "asyncio.Future[Any]") -> str:
        """Why the buffer is paused; empty if it is not, does not say, or answers meanwhile."""
        asking = asyncio.ensure_future(self._rpc.call("statistics"))
        try:
            await asyncio.wait({answering, asking}, timeout=PAUSE_CHECK_S, return_when=asyncio.FIRST_COMPLETED)
            return str(asking.result().paused) if asking.done() else ""
        finally:
            asking.cancel()

    def _paused_by(self, reason: str) -> None:
        if reason != self._pause:
            self._pause = reason
            self._note(f"Paused: {reason}")

    async def _gone(self, of: str, loss: ConnectionLost) -> ComponentFailed:
        """What became of the buffer, or of the connection."""
        if self._closed:
            return ComponentFailed(f"{of}: {self._client} is ending and has closed its connection")
        try:
            await _endpoint(self._actor, of, self._client)
        except ComponentFailed as death:
            return death
        return ProcessDied(f"{self._client} lost its connection to the buffer, which lives ({of}: {loss}); see the network")

    def close(self) -> None:
        """End the connection."""
        self._closed = True
        self._rpc.close()


async def _endpoint(actor: Any, of: str, client: str) -> Endpoint:
    return await ask_buffer(actor.endpoint.remote(), of=of, by=client, seconds=ANSWER_DEADLINE_S, remedy=_REMEDY)
