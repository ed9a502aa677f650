"""The buffer as a service: it answers the verbs of :class:`~asyncrl.core.buffer_api.BufferApi`, and gives up silent workers.

What always holds: every change is made by :mod:`asyncrl.buffers.write_ahead`; a waiting caller is woken when what it waits for
has come or the service has failed (:mod:`asyncrl.buffers.waiters`); nothing waits without a deadline, and deadlines stand still
while a full disk pauses the run. The service is a plain class on one event loop; other modules serve it over the
network.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec

from asyncrl.buffers import commands
from asyncrl.buffers.commands import Command
from asyncrl.buffers.heartbeats import Heartbeats
from asyncrl.buffers.journal.journal import Journal
from asyncrl.buffers.pauses import Pauses
from asyncrl.buffers.replay_buffer import NOTHING_TRAINED, ReplayBuffer
from asyncrl.buffers.waiters import Waiters, fair_share
from asyncrl.buffers.write_ahead import WriteAhead
from asyncrl.core.batch import Batch
from asyncrl.core.episode_records import EpisodeRecord, PayloadRef
from asyncrl.core.errors import ComponentFailed, DeadlineExceeded, FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.measures.buffer_statistics import BufferStatistics, GroupState
from asyncrl.core.recipe.schema import DeadlinesConfig
from asyncrl.core.ticket import Ticket

logger = logging.getLogger(__name__)

LEASE_WAIT_S = 5.0
"""Seconds after which a lease request gets an empty answer, so that requests of dead workers do not stay."""
FREED_AT_ONCE = 64
"""Most payloads freed in one call."""
BATCHES_IN_VAIN = 2
"""As many batches of groups may be left out by filters, one after the other, before the user hears of it."""
BLOCKERS_NAMED = 3
"""Number of groups that the error about an overdue batch names; the others are counted."""


class BufferService:
    """Adds waiting, durability and leases to a buffer. Use it in one event loop only, and end it with :meth:`close`.

    Args:
        buffer: new, or recovered.
        journal: the journal for the buffer's commands. None: there is no journal, and a batch is kept only until it is
            trained.
        free: frees payload that is no longer needed; called in a thread.
        sweep: frees the payload that a recovery found unnecessary; called once, in a thread, when the learner's first checkpoint
            is durable. Until then, it must destroy nothing that an earlier state of the run needs.
        clock: returns seconds since the epoch; only ages are computed from it.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        journal: Journal | None,
        *,
        groups_per_step: int,
        deadlines: DeadlinesConfig,
        free: Callable[[Sequence[PayloadRef]], None],
        sweep: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._groups_per_step, self._batch_deadline = groups_per_step, deadlines.batch
        self._buffer, self._free, self._sweep, self._clock = buffer, free, sweep, clock
        self._keeps_journal = journal is not None
        self._arrived: list[EpisodeRecord] = []
        self._freed: list[PayloadRef] = []
        self._freeing = False
        self._pauses = Pauses()
        self._waiters = Waiters(buffer, groups_per_step)
        self._changes = WriteAhead(buffer, journal, pauses=self._pauses, applied=self._changed, failed=self._waiters.fail)
        self._heartbeats = Heartbeats(deadlines.lease, self._silent)
        self._losses: Counter[WorkerId] = Counter()
        self._asking: dict[object, PolicyVersion] = {}
        """The version of each request that has no tickets yet."""
        self._background: set[asyncio.Task[None]] = set()

    async def lease(self, worker: WorkerId, version: PolicyVersion, limit: int) -> Sequence[Ticket]:
        """Return up to ``limit`` tickets for a worker whose engine has ``version``; none if there are none within a few seconds.

        Workers that ask at the same time share what there is. A worker that is given up meanwhile gets no ticket: it may be dead
        already.
        """
        request = object()
        try:
            return await self._lease(request, worker, version, limit)
        finally:
            self._asking.pop(request, None)

    async def _lease(self, request: object, worker: WorkerId, version: PolicyVersion, limit: int) -> Sequence[Ticket]:
        self._heartbeats.heard(worker)
        losses = self._losses[worker]

        def lease() -> Command | None:
            if request not in self._asking:  # its caller has gone while another change was written
                self._waiters.wake()  # another request may use the room that woke this one
                return None
            if self._losses[worker] != losses or not self._may_lease(version):
                return None
            share = fair_share(self._buffer.room(), sum(each == version for each in self._asking.values()))
            del self._asking[request]  # now, not when its caller has the answer: the next one's share is counted before that
            return commands.IssueTickets(worker, min(limit, share), self._clock())

        until = asyncio.get_running_loop().time() + LEASE_WAIT_S
        tickets: list[Ticket] | None = None
        while not tickets:
            self._asking[request] = version
            try:
                async with asyncio.timeout_at(until):
                    while not self._may_lease(version):
                        await self._waiters.room(version)
                        if version < self._buffer.version:
                            return []  # versions never go back; the worker asks again with the version that it has by now
            except TimeoutError:
                return []
            if self._losses[worker] != losses:
                self._waiters.wake()  # another request may use the room that woke this one
                return []
            tickets = await self._changes.change(lease)
        return tickets

    def _may_lease(self, version: PolicyVersion) -> bool:
        self._changes.check()
        return version == self._buffer.version and self._buffer.room() > 0

    async def commit(self, records: Sequence[EpisodeRecord]) -> None:
        """Take in finished episodes; when this returns, they are in the journal.

        Committing an episode twice does no harm. What arrives together is written together.
        """
        self._arrived.extend(records)
        await self._changes.change(self._commit_arrived, shared=True)

    def _commit_arrived(self) -> Command | None:
        """Commit everything that has arrived; None if an earlier command has already committed it."""
        arrived, self._arrived = tuple(self._arrived), []
        return commands.Commit(arrived, self._clock()) if arrived else None

    async def fail(self, group_id: GroupId, sample_index: int, kind: FailureKind, reason: str, incident: str = "") -> None:
        """Take back an episode that failed."""
        await self._do(commands.Fail(group_id, sample_index, kind, reason, incident))

    async def leave_out(self, group_id: GroupId, reason: str) -> None:
        """End a group whose task's prompt leaves no room for a turn, and never draw the task again."""
        await self._do(commands.LeaveOut(group_id, reason))

    async def renew(self, worker: WorkerId, running: Sequence[GroupId]) -> Sequence[GroupId]:
        """Note that the worker is alive, and return those of its ``running`` groups that nobody waits for any more."""
        self._heartbeats.heard(worker)
        return self._buffer.unwanted(worker, running)

    async def lost(self, worker: WorkerId) -> None:
        """Give up a worker, and issue its open episodes again."""
        self._let_go(worker)
        await self._do(commands.Lost(worker))

    async def hand_back(self, worker: WorkerId, why: str) -> None:
        """Issue the open episodes of a worker again, because it was told to end, or its node is gone or out of reach."""
        self._let_go(worker)
        await self._do(commands.HandBack(worker, why))

    def _let_go(self, worker: WorkerId) -> None:
        self._losses[worker] += 1
        self._heartbeats.forget(worker)
        self._pauses.set(worker, "")

    async def report_pause(self, worker: WorkerId, message: str) -> None:
        """Note that the worker cannot go on because of ``message``; an empty message means that it goes on."""
        self._heartbeats.heard(worker)
        self._pauses.set(worker, message)

    async def take(self, version: PolicyVersion) -> Batch:
        """Return the batch to train at ``version``; the same one, however often it is asked for."""
        takeable = partial(self._buffer.batches.takeable, version, self._groups_per_step)

        def take() -> Command | None:
            return commands.Take(version, self._groups_per_step) if takeable() else None

        batch: Batch | None = None
        try:
            async with self._pauses.deadline(self._batch_deadline):
                while batch is None:
                    self._changes.check()
                    if self._buffer.batches.has_stale(version):
                        await self._do(commands.Expire(version))
                    elif takeable():
                        batch = await self._changes.change(take)
                    else:
                        await self._waiters.batch(version)
        except TimeoutError as error:
            raise self._overdue(version) from error
        return batch

    def _overdue(self, version: PolicyVersion) -> DeadlineExceeded:
        statistics = self._buffer.statistics()
        counts = statistics.ledger
        blockers = self._buffer.groups.blockers()
        named = [
            f"group {group_id} (task {task_id}) on {worker or 'no worker: it waits to be issued again'}"
            for group_id, task_id, worker in blockers[:BLOCKERS_NAMED]
        ]
        if len(blockers) > BLOCKERS_NAMED:
            named.append(f"{len(blockers) - BLOCKERS_NAMED} more")
        left_out = ", ".join(f"{count} {why}" for why, count in sorted(counts.reasons.items())) or "none"
        remedy = "see that worker's log, shorten environment.episode_timeout_s, or raise deadlines.batch"
        if counts.filtered and counts.filtered == counts.issued - counts.running - counts.failed:
            remedy = "every finished group was filtered: loosen buffer.filters, or give tasks of another difficulty"
            if statistics.too_long_tasks and not counts.left_out_by_filters:
                remedy = "prompts of the tasks leave no room for a turn: raise model.max_context, or shorten them"
            elif counts.left_out_by_filters * 2 < counts.filtered:
                remedy = (
                    "every group was given up because its task breaks its environment: correct that; see the generators' logs"
                )
        elif not blockers:
            remedy = "no group is being generated: see the generators' logs, or raise deadlines.batch"
        return DeadlineExceeded(
            "the learner",
            f"a batch of {self._groups_per_step} groups for version {version} (version {statistics.version} is published; "
            f"{counts.committed} committed, {counts.running} running, {counts.failed} to be issued again; left out: {left_out}; "
            f"waiting for {', '.join(named) or 'nothing that is running'})",
            self._batch_deadline,
            remedy,
        )

    async def trained(self, version: PolicyVersion) -> None:
        """Note that the batch of ``version`` was trained."""
        await self._do(commands.Trained(version))
        if not self._keeps_journal:
            # Without a journal the learner cannot come back, so no batch must be kept for it.
            await self._do(commands.Checkpointed(PolicyVersion(version + 1)))

    async def advance(self, version: PolicyVersion) -> None:
        """Make ``version`` the published version, so that workers that have it may lease."""
        await self._do(commands.Advance(version))

    async def checkpointed(self, version: PolicyVersion) -> None:
        """Note that the learner has a durable checkpoint of ``version``; the first one since a recovery begins the sweep."""
        await self._do(commands.Checkpointed(version))
        sweep, self._sweep = self._sweep, None
        if sweep is not None:
            self._spawn(asyncio.to_thread(sweep))

    async def pace(self, depth: int) -> None:
        """Change the pipeline depth."""
        await self._do(commands.Pace(depth))

    async def statistics(self) -> BufferStatistics:
        """Return what the buffer holds, the whole ledger, and whether the run is paused."""
        statistics = self._buffer.statistics()
        return msgspec.structs.replace(statistics, paused=self._pauses.message, in_vain=self._in_vain(statistics))

    def _in_vain(self, statistics: BufferStatistics) -> str:
        """Say so if filters have left out the groups of :data:`BATCHES_IN_VAIN` batches, one after the other."""
        left_out, ready = statistics.filtered_in_a_row, statistics.ledger.committed
        if ready >= self._groups_per_step or left_out < BATCHES_IN_VAIN * self._groups_per_step:
            return ""
        untrained = statistics.ledger.reasons.get(f"{GroupState.FILTERED}: {NOTHING_TRAINED}", 0)
        if untrained:
            return (
                f"{left_out} groups, one after the other, were left out, and the learner waits: {untrained} so far have no "
                "trajectory of a role that environment.train names; name roles that the agent asks for, or set it to `all`"
            )
        return (
            f"buffer.filters left out the last {left_out} groups, one after the other, and the learner waits: choose tasks that "
            "the policy sometimes solves, check that the reward tells answers apart, or resume with looser filters "
            "(asyncrl launch --resume RUN 'buffer.filters=[]')"
        )

    async def close(self) -> None:
        """Refuse all calls from now on, let background work end, and close the journal. A second call does nothing."""
        self._heartbeats.close()
        self._changes.fail(ComponentFailed("the buffer was closed"))
        if self._background:
            await asyncio.wait(self._background)
        await self._changes.close()

    async def _do(self, command: Command) -> None:
        await self._changes.change(lambda: command)

    def _changed(self) -> None:
        self._freed += self._buffer.drain_freed()
        if self._freed and not self._freeing:
            self._freeing = True
            self._spawn(self._free_payload())
        self._waiters.wake()

    async def _free_payload(self) -> None:
        try:
            while self._freed:
                # Not all at once: a busy thread makes the event loop wait.
                refs, self._freed = self._freed[:FREED_AT_ONCE], self._freed[FREED_AT_ONCE:]
                await asyncio.to_thread(self._free, refs)
        finally:
            self._freeing = False

    def _silent(self, worker: WorkerId) -> None:
        logger.warning("%s was silent for too long and is given up; what it was generating is issued again", worker)
        self._spawn(self.lost(worker))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._changes.fail(error)
