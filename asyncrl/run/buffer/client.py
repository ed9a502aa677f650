"""The client of the buffer's service. Each call has a deadline, which does not run while the buffer's disk is full."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from asyncrl.core.batch import Batch
from asyncrl.core.buffer_api import BufferApi
from asyncrl.core.deadline import deadline
from asyncrl.core.episode_records import EpisodeRecord
from asyncrl.core.errors import ComponentFailed, DeadlineExceeded, FailureKind, ProcessDied
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.measures.buffer_statistics import BufferStatistics
from asyncrl.core.ticket import Ticket
from asyncrl.rpc.client import ConnectionLost, RpcClient
from asyncrl.rpc.wire import Endpoint, signatures
from asyncrl.run.host.ray_calls import ANSWER_DEADLINE_S, ask_buffer

METHODS = signatures(BufferApi)
"""The calls that the buffer's service answers."""

P = ParamSpec("P")
R = TypeVar("R")

PAUSE_CHECK_S = 10.0
"""Seconds until a buffer that has not answered is asked, again and again, whether it waits for its disk. Longer than a
lease call waits for a ticket."""
_REMEDY = "its process or the network to it may be overloaded; see logs/buffer.log"


class BufferClient:
    """One client's connection to the buffer. Made by :meth:`connect`; used within one event loop.

    Every call raises ``DeadlineExceeded`` if the buffer does not answer in time and is not paused; ``ComponentFailed``
    if the buffer died, because no other process can replace it; and ``loss`` if the buffer is alive and this client
    lost its connection to it. ``loss`` is ``ProcessDied`` if another client can do this one's work.

    A client never reconnects: nobody would know whether the buffer received the last call, and tickets in its answer
    would be lost. So a client that loses its connection ends, and its tickets are issued again.

    Args:
        client: the caller's name, for error messages.
        note: called with a line for the user when a call has to wait for the buffer's disk, and with another when it
            goes on; and once if a batch is waited for of which filters leave out every group.
        batch_seconds: how long the buffer may wait for a batch (``deadlines.batch``); needed by clients that take batches.
        loss: the class of the error that a lost connection raises.
    """

    def __init__(
        self,
        actor: Any,
        rpc: RpcClient,
        client: str,
        note: Callable[[str], None],
        batch_seconds: float = 0.0,
        loss: type[ComponentFailed] = ProcessDied,
    ) -> None:
        self._actor, self._rpc, self._client, self._note = actor, rpc, client, note
        self._batch_seconds, self._loss = batch_seconds, loss
        self._pause = ""
        self._told_in_vain = self._closed = False

    @classmethod
    async def connect(
        cls,
        actor: Any,
        client: str,
        note: Callable[[str], None],
        batch_seconds: float = 0.0,
        loss: type[ComponentFailed] = ProcessDied,
    ) -> "BufferClient":
        """Connect to the buffer of ``actor``, which must be ready.

        Raises:
            DeadlineExceeded: the buffer cannot be reached in time.
            ComponentFailed: the buffer died, or its node refuses the connection.
        """
        endpoint = await _endpoint(actor, "the buffer (endpoint)", client)
        remedy = "the nodes of the cluster must be able to connect to one another on every port, as Ray needs too"
        try:
            async with deadline(ANSWER_DEADLINE_S, waiter=client, owner=f"a connection to {endpoint}", remedy=remedy):
                return cls(actor, await RpcClient.connect(endpoint, METHODS), client, note, batch_seconds, loss)
        except ConnectionLost as error:
            raise ComponentFailed(f"{client} cannot connect to the buffer: {error}; {remedy}") from error

    async def lease(self, worker: WorkerId, version: PolicyVersion, limit: int) -> Sequence[Ticket]:
        """Return up to ``limit`` tickets for a worker whose engine has ``version``; none if there are none at present."""
        return await self._call(BufferApi.lease, worker, version, limit)

    async def commit(self, records: Sequence[EpisodeRecord]) -> None:
        """Take in finished episodes; when this returns, they are in the journal. Committing an episode twice does no harm."""
        await self._call(BufferApi.commit, records)

    async def fail(self, group_id: GroupId, sample_index: int, kind: FailureKind, reason: str, incident: str = "") -> None:
        """Take back an episode that failed."""
        await self._call(BufferApi.fail, group_id, sample_index, kind, reason, incident)

    async def leave_out(self, group_id: GroupId, reason: str) -> None:
        """End a group whose task's prompt leaves no room for a turn, and never draw the task again."""
        await self._call(BufferApi.leave_out, group_id, reason)

    async def renew(self, worker: WorkerId, running: Sequence[GroupId]) -> Sequence[GroupId]:
        """Note that the worker is alive, and return those of its ``running`` groups that nobody waits for any more."""
        return await self._call(BufferApi.renew, worker, running)

    async def lost(self, worker: WorkerId) -> None:
        """Give up a worker, and issue its open episodes again."""
        await self._call(BufferApi.lost, worker)

    async def hand_back(self, worker: WorkerId, why: str) -> None:
        """Issue the open episodes of a worker again, because it was told to end, or its node is gone or out of reach."""
        await self._call(BufferApi.hand_back, worker, why)

    async def report_pause(self, worker: WorkerId, message: str) -> None:
        """Note that the worker cannot go on because of ``message``; an empty message means that it goes on."""
        await self._call(BufferApi.report_pause, worker, message)

    async def take(self, version: PolicyVersion) -> Batch:
        """Return the batch to train at ``version``; the same one, however often it is asked for.

        The buffer itself keeps the deadline of this call: its error says more.
        """
        return await self._call(BufferApi.take, version)

    async def trained(self, version: PolicyVersion) -> None:
        """Note that the batch of ``version`` was trained."""
        await self._call(BufferApi.trained, version)

    async def advance(self, version: PolicyVersion) -> None:
        """Make ``version`` the published version, so that workers that have it may lease."""
        await self._call(BufferApi.advance, version)

    async def checkpointed(self, version: PolicyVersion) -> None:
        """Note that the learner has a durable checkpoint of ``version``, and never goes back to before it."""
        await self._call(BufferApi.checkpointed, version)

    async def pace(self, depth: int) -> None:
        """Change the pipeline depth."""
        await self._call(BufferApi.pace, depth)

    async def statistics(self) -> BufferStatistics:
        """Return what the buffer holds, the whole ledger, and whether the run is paused."""
        return await self._call(BufferApi.statistics)

    async def _call(self, verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> R:
        of = f"the buffer ({verb.__name__})"
        answering = asyncio.ensure_future(self._rpc.call(verb, *args, **kwargs))
        seconds = ANSWER_DEADLINE_S + (self._batch_seconds if verb is BufferApi.take else 0.0)
        try:
            await self._wait(answering, of, seconds, takes=verb is BufferApi.take)
            result = answering.result()
        except ConnectionLost as loss:
            raise await self._gone(of, loss) from loss
        finally:
            answering.cancel()
        if self._pause:
            self._pause = ""
            self._note("There is room again: the run goes on")
        return result

    async def _wait(self, answering: "asyncio.Future[Any]", of: str, seconds: float, *, takes: bool) -> None:
        clock, left = asyncio.get_running_loop().time, seconds
        while left > 0:
            begin = clock()
            await asyncio.wait({answering}, timeout=min(left, PAUSE_CHECK_S))
            if answering.done():
                return
            statistics = await self._asked(answering)
            if statistics is not None and statistics.paused:
                self._paused_by(statistics.paused)
            else:
                left -= clock() - begin
                if statistics is not None and statistics.in_vain and not self._told_in_vain and takes:
                    self._told_in_vain = True
                    self._note(f"Warning: {statistics.in_vain}")
        if not answering.done():
            raise DeadlineExceeded(self._client, of, seconds, _REMEDY)

    async def _asked(self, answering: "asyncio.Future[Any]") -> BufferStatistics | None:
        """Ask how the buffer is; None if it does not say, or answers the call meanwhile."""
        asking = asyncio.ensure_future(self._rpc.call(BufferApi.statistics))
        try:
            await asyncio.wait({answering, asking}, timeout=PAUSE_CHECK_S, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            asking.cancel()

    def _paused_by(self, reason: str) -> None:
        if reason != self._pause:
            self._pause = reason
            self._note(f"Paused: {reason}")

    async def _gone(self, of: str, loss: ConnectionLost) -> ComponentFailed:
        """Make the error that says whether the buffer died or only the connection was lost."""
        if self._closed:
            return ComponentFailed(f"{of}: {self._client} is ending and has closed its connection")
        try:
            await _endpoint(self._actor, of, self._client)
        except ComponentFailed as death:
            return death
        return self._loss(f"{self._client} lost its connection to the buffer, which is alive ({of}: {loss}); check the network")

    def close(self) -> None:
        """End the connection."""
        self._closed = True
        self._rpc.close()


async def _endpoint(actor: Any, of: str, client: str) -> Endpoint:
    return await ask_buffer(actor.endpoint.remote(), of=of, by=client, seconds=ANSWER_DEADLINE_S, remedy=_REMEDY)
