"""The buffer's service as its clients see it: each call bounded and named, but waiting for room on a full disk does not count."""

import asyncio
from collections.abc import Callable
from typing import Any

from asyncrl.core.deadline import deadline
from asyncrl.core.errors import ComponentFailed, DeadlineExceeded, ProcessDied
from asyncrl.run.asking import ANSWER_DEADLINE_S, ask
from asyncrl.run.rpc import signatures
from asyncrl.run.rpc_client import ConnectionLost, RpcClient
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
_REMEDY = "its process is overloaded; see logs/buffer.log"


class BufferHandle:
    """Calls of one client. Made by :meth:`connect`; lives within one event loop.

    Args:
        actor: the buffer's Ray handle.
        rpc: to its service.
        client: who calls, for error messages.
        note: told why a call has to wait for long, and when it goes on.
    """

    def __init__(self, actor: Any, rpc: RpcClient, client: str, note: Callable[[str], None]) -> None:
        self._actor, self._rpc, self._client, self._note = actor, rpc, client, note
        self._pause = ""

    @classmethod
    async def connect(cls, actor: Any, client: str, note: Callable[[str], None]) -> "BufferHandle":
        """A handle on the buffer of ``actor``, which is ready.

        Raises:
            DeadlineExceeded: it cannot be reached in time.
            ComponentFailed: it died, or its node lets nobody connect.
        """
        of, by = "the buffer (endpoint)", client
        endpoint = await ask(actor.endpoint.remote(), of=of, by=by, seconds=ANSWER_DEADLINE_S, remedy=_REMEDY)
        remedy = "let the nodes of the cluster connect to one another on all ports, as Ray needs it, too"
        try:
            async with deadline(ANSWER_DEADLINE_S, waiter=by, owner=f"a connection to {endpoint.host}", remedy=remedy):
                return cls(actor, await RpcClient.connect(endpoint, METHODS), client, note)
        except ConnectionLost as error:
            raise ComponentFailed(f"{client} cannot connect to the buffer: {error}; {remedy}") from error

    async def call(self, method: str, *arguments: Any, seconds: float = ANSWER_DEADLINE_S) -> Any:
        """What the buffer's ``method`` answers.

        Raises:
            DeadlineExceeded: no answer for ``seconds`` in which the buffer was not paused.
            ComponentFailed: the buffer died, which no other can make up for.
        """
        of = f"the buffer ({method})"
        answering = asyncio.ensure_future(self._rpc.call(method, *arguments))
        left = seconds
        try:
            while not (await asyncio.wait({answering}, timeout=min(left, PAUSE_CHECK_S)))[0]:
                if reason := await self._paused():
                    self._paused_by(reason)
                else:
                    left -= PAUSE_CHECK_S
                if left <= 0:
                    raise DeadlineExceeded(self._client, of, seconds, _REMEDY)
            result = answering.result()
        except ConnectionLost as error:
            raise await self._gone(of, error) from error
        finally:
            answering.cancel()
        if self._pause:
            self._pause = ""
            self._note("There is room again: the run goes on")
        return result

    async def _paused(self) -> str:
        of = "the buffer (statistics)"
        async with deadline(ANSWER_DEADLINE_S, waiter=self._client, owner=of, remedy=_REMEDY):
            return str((await self._rpc.call("statistics")).paused)

    def _paused_by(self, reason: str) -> None:
        if reason != self._pause:
            self._pause = reason
            self._note(f"Paused: {reason}")

    async def _gone(self, of: str, loss: ConnectionLost) -> ComponentFailed:
        """What became of the buffer, as Ray knows it."""
        try:
            await ask(self._actor.endpoint.remote(), of=of, by=self._client, seconds=ANSWER_DEADLINE_S, remedy=_REMEDY)
        except ProcessDied as death:
            return ComponentFailed(str(death))
        return ComponentFailed(f"{of}: {loss}, and its process lives; see the network between {self._client} and its node")

    def close(self) -> None:
        """End the connection."""
        self._rpc.close()
