"""The buffer as a service: what waits, what is written before it happens, and who is given up.

What always holds: every change of the :class:`~buffers.replay_buffer.ReplayBuffer` is a command that was appended to the journal
before it was applied, one after the other, so the journal replayed is the buffer; whoever waits is woken exactly when what it
waits for has come, or the service has failed; nothing waits without a deadline, and deadlines stand still while a full disk
pauses the run. A plain class on one event loop: transport is put around it elsewhere.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec

from asyncrl.core.batch import Batch
from asyncrl.core.buffer_statistics import BufferStatistics
from asyncrl.core.errors import AsyncRLError, ComponentFailed, DeadlineExceeded, FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.payload import PayloadRef, TrajectoryRecord
from asyncrl.core.recipe.schema import AppendOnlyJournal, Recipe
from asyncrl.core.ticket import Ticket
from buffers import commands
from buffers.commands import Command
from buffers.heartbeats import Heartbeats
from buffers.journal import Journal
from buffers.pauses import Pauses
from buffers.payload import DiskFull
from buffers.replay_buffer import ReplayBuffer

logger = logging.getLogger(__name__)

LEASE_WAIT_S = 5.0
"""A lease request that finds no ticket is answered empty after this long, so that one whose worker is gone does not stay."""
SNAPSHOT_BYTES = 8 << 20
"""A snapshot is taken when the journal grew by this much since the last one: what a recovery replays at most."""
DISK_RETRY_S = 1.0
"""How often a full disk is tried again: a file system tells nobody that it has room."""
FREED_AT_ONCE = 64
"""Payloads given up in one go."""
BLOCKERS_NAMED = 3
"""Groups an overdue batch names; the rest are counted."""


class BufferService:
    """Waiting, durability and leases around a buffer. Lives within one event loop; end it with :meth:`close`.

    Args:
        recipe: the run's.
        buffer: new, or recovered.
        journal: where the buffer's commands go; None keeps none, and then a batch is given up as soon as it was trained.
        free: gives up payload that nobody needs any more; called in a thread.
        sweep: gives up the payload that a recovery found nobody needs; called in a thread, once, when the learner's first
            checkpoint is durable: before that, the run could not go on without what came before it.
        clock: seconds since the epoch; only ages are computed from it.
    """

    def __init__(
        self,
        recipe: Recipe,
        buffer: ReplayBuffer,
        *,
        journal: Journal | None,
        free: Callable[[Sequence[PayloadRef]], None],
        sweep: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._groups_per_step, self._batch_deadline = recipe.batch.groups_per_step, recipe.deadlines.batch
        self._buffer, self._journal, self._free, self._clock = buffer, journal, free, clock
        self._sweep = sweep
        self._waits_for_disk = isinstance(recipe.buffer.journal, AppendOnlyJournal) and recipe.buffer.journal.fsync == "always"
        self._next_snapshot = SNAPSHOT_BYTES
        self._writing = asyncio.Lock()
        self._arrived: list[TrajectoryRecord] = []
        self._freed: list[PayloadRef] = []
        self._freeing = False
        self._leasing: dict[PolicyVersion, deque[asyncio.Future[None]]] = {}
        self._taking: dict[asyncio.Future[None], PolicyVersion] = {}
        self._pauses = Pauses()
        self._heartbeats = Heartbeats(recipe.deadlines.lease, self._silent)
        self._losses: Counter[WorkerId] = Counter()
        self._background: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    async def lease(self, worker: WorkerId, version: PolicyVersion, limit: int) -> Sequence[Ticket]:
        """Tickets for a worker that has the published version; empty after ``LEASE_WAIT_S`` without one.

        A worker that is given up gets none by what it asked for before: its call may outlive it.
        """
        self._heartbeats.heard(worker)
        losses = self._losses[worker]

        def allowed() -> bool:
            return self._losses[worker] == losses and self._may_lease(version)

        until = asyncio.get_running_loop().time() + LEASE_WAIT_S
        tickets: list[Ticket] | None = None
        while not tickets:
            try:
                async with asyncio.timeout_at(until):
                    while not self._may_lease(version):
                        await self._lease_possible(version)
                        if version < self._buffer.version:
                            return []  # versions do not go back; the worker asks again with what it has by now
            except TimeoutError:
                return []
            if self._losses[worker] != losses:
                self._wake()  # the room that this one was woken for is another's
                return []
            tickets = await self._do_if(allowed, commands.Lease(worker, limit, self._clock()))
        return tickets

    def _may_lease(self, version: PolicyVersion) -> bool:
        self._check()
        return version == self._buffer.version and self._buffer.room() > 0

    async def _lease_possible(self, version: PolicyVersion) -> None:
        """Wait until there is room at ``version``, or another version is published; one that is behind already waits in vain."""
        woken = asyncio.get_running_loop().create_future()
        if version < self._buffer.version:
            await woken
        waiting = self._leasing.setdefault(version, deque())
        waiting.append(woken)
        try:
            await woken
        except asyncio.CancelledError:
            if woken.done() and not woken.cancelled():
                self._wake()  # the room that this one was woken for is another's
            raise
        finally:
            if woken in waiting:
                waiting.remove(woken)
            if not self._leasing.get(version, waiting):
                self._leasing.pop(version, None)

    async def commit(self, records: Sequence[TrajectoryRecord]) -> None:
        """Take in finished episodes; when this returns, they are in the journal. What arrives together is written together."""
        self._arrived.extend(records)
        await self._shielded(self._commit_arrived())

    async def _commit_arrived(self) -> None:
        async with self._writing:
            self._check()
            if not self._arrived:
                return  # somebody who came just before took these along
            arrived, self._arrived = tuple(self._arrived), []
            try:
                await self._write_and_apply(commands.Commit(arrived, self._clock()))
            except (AsyncRLError, OSError) as error:
                self._fail(error)  # the others whose samples were among these must hear of it, too
                raise

    async def fail(self, group_id: GroupId, sample_index: int, kind: FailureKind, reason: str) -> None:
        """Take an episode back that failed.

        Raises:
            BudgetExceeded: it was one too many.
        """
        await self._do(commands.Fail(group_id, sample_index, kind, reason))

    async def renew(self, worker: WorkerId, running: Sequence[GroupId]) -> Sequence[GroupId]:
        """The worker lives; those of its groups that nobody waits for any more."""
        self._heartbeats.heard(worker)
        return self._buffer.unwanted(worker, running)

    async def lost(self, worker: WorkerId) -> None:
        """The worker is gone; its open episodes are issued again.

        Raises:
            BudgetExceeded: it was one too many.
        """
        self._losses[worker] += 1
        self._heartbeats.forget(worker)
        self._pauses.set(worker, "")
        await self._do(commands.Lost(worker))

    async def report_pause(self, worker: WorkerId, message: str) -> None:
        """The worker cannot go on for the time being because of ``message``; empty when it goes on."""
        self._heartbeats.heard(worker)
        self._pauses.set(worker, message)

    async def take(self, version: PolicyVersion) -> Batch:
        """The batch to train at ``version``; the same one however often it is asked for.

        Raises:
            DeadlineExceeded: there was none for ``deadlines.batch`` seconds; says what was waited for, where, and why.
        """
        takeable = partial(self._buffer.takeable, version, self._groups_per_step)
        batch: Batch | None = None
        try:
            async with self._pauses.deadline(self._batch_deadline):
                while batch is None:
                    if self._buffer.has_stale(version):
                        await self._do(commands.Expire(version))
                    elif takeable():
                        batch = await self._do_if(takeable, commands.Take(version, self._groups_per_step))
                    else:
                        await self._take_possible(version)
        except TimeoutError as error:
            raise self._overdue(version) from error
        return batch

    async def _take_possible(self, version: PolicyVersion) -> None:
        self._check()
        woken = asyncio.get_running_loop().create_future()
        self._taking[woken] = version
        try:
            await woken
        finally:
            del self._taking[woken]

    def _overdue(self, version: PolicyVersion) -> DeadlineExceeded:
        statistics = self._buffer.statistics()
        counts = statistics.ledger
        blockers = self._buffer.blockers(version)
        named = [
            f"group {group_id} (task {task_id}) on {worker or 'no worker: it waits to be issued again'}"
            for group_id, task_id, worker in blockers[:BLOCKERS_NAMED]
        ]
        if len(blockers) > BLOCKERS_NAMED:
            named.append(f"{len(blockers) - BLOCKERS_NAMED} more")
        left_out = ", ".join(f"{count} {why}" for why, count in sorted(counts.reasons.items())) or "none"
        remedy = "look into that worker's log, shorten environment.episode_timeout_s, or raise deadlines.batch"
        if counts.filtered and counts.filtered == counts.issued - counts.running - counts.failed:
            remedy = "every group that was finished was filtered: loosen buffer.filters, or give tasks of another difficulty"
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
        """The batch of ``version`` was trained."""
        await self._do(commands.Trained(version))
        if self._journal is None:
            # There is nothing to come back to, so nothing has to be kept for it.
            await self._do(commands.Checkpointed(PolicyVersion(version + 1)))

    async def advance(self, version: PolicyVersion) -> None:
        """Make ``version`` the published one, which lets the workers lease that waited for it."""
        await self._do(commands.Advance(version))

    async def checkpointed(self, version: PolicyVersion) -> None:
        """A checkpoint of the learner is durable, and its oldest one is of ``version``: older batches are not asked for again."""
        await self._do(commands.Checkpointed(version))
        sweep, self._sweep = self._sweep, None
        if sweep is not None:
            self._spawn(asyncio.to_thread(sweep))

    async def statistics(self) -> BufferStatistics:
        """What is held, the whole ledger, and whether the run is paused."""
        return msgspec.structs.replace(self._buffer.statistics(), paused=self._pauses.message)

    async def close(self) -> None:
        """Refuse whatever is asked from now on, let the background work end, and close the journal. Harmless the second time."""
        self._heartbeats.close()
        self._fail(ComponentFailed("the buffer was closed"))
        if self._background:
            await asyncio.wait(self._background)
        async with self._writing:
            journal, self._journal = self._journal, None
            if journal is not None:
                journal.close()

    async def _do(self, command: Command) -> Any:
        return await self._do_if(lambda: True, command)

    async def _do_if(self, allowed: Callable[[], bool], command: Command) -> Any:
        """The command's answer; None, and nothing was done, if it was not ``allowed`` when its turn came."""
        return await self._shielded(self._in_turn(allowed, command))

    async def _in_turn(self, allowed: Callable[[], bool], command: Command) -> Any:
        async with self._writing:
            self._check()
            return await self._write_and_apply(command) if allowed() else None

    async def _shielded(self, change: Coroutine[Any, Any, Any]) -> Any:
        """A change goes to its end even if the one who asked for it has gone: what is in the journal must be applied."""
        return await asyncio.shield(asyncio.ensure_future(change))

    async def _write_and_apply(self, command: Command) -> Any:
        if self._journal is not None:
            await self._write(self._journal, command)
        answer = command.apply(self._buffer)
        self._freed += self._buffer.drain_freed()
        if self._freed and not self._freeing:
            self._freeing = True
            self._spawn(self._free_payload())
        self._wake()
        if self._journal is not None and self._journal.bytes_since_snapshot >= self._next_snapshot:
            await self._snapshot(self._journal)
        return answer

    async def _write(self, journal: Journal, command: Command) -> None:
        record = commands.encode(command)
        paused = False
        while True:
            try:
                if self._waits_for_disk:
                    await asyncio.to_thread(journal.append, record)
                else:
                    journal.append(record)
                break
            except DiskFull as error:
                if not paused:
                    logger.warning("paused: %s", error)
                paused = True
                self._pauses.set("the buffer", str(error))
                await asyncio.sleep(DISK_RETRY_S)
                self._check()  # who ends the run does not wait for room
        if paused:
            logger.warning("there is room again: the run goes on")
            self._pauses.set("the buffer", "")

    async def _snapshot(self, journal: Journal) -> None:
        state = self._buffer.snapshot()
        try:
            await asyncio.to_thread(journal.snapshot, state)
        except DiskFull as error:
            # The journal is whole without it; a recovery only replays more.
            logger.warning("no snapshot this time: %s", error)
        # A large state is written less often, so that snapshots never cost more than the journal itself.
        self._next_snapshot = journal.bytes_since_snapshot + max(SNAPSHOT_BYTES, len(state))

    def _wake(self) -> None:
        for woken, version in self._taking.items():
            if not woken.done() and (self._buffer.takeable(version, self._groups_per_step) or self._buffer.has_stale(version)):
                woken.set_result(None)
        for passed in [version for version in self._leasing if version < self._buffer.version]:
            for woken in self._leasing.pop(passed):
                if not woken.done():
                    woken.set_result(None)
        waiting = self._leasing.get(self._buffer.version)
        if waiting and self._buffer.room() > 0:
            # Only the first: its own lease wakes the next, if there is room left.
            while waiting:
                woken = waiting.popleft()
                if not woken.done():
                    woken.set_result(None)
                    break

    async def _free_payload(self) -> None:
        try:
            while self._freed:
                # Not all at once: a thread at work keeps the event loop waiting.
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
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """The service cannot go on: every call, waiting or to come, raises ``error``."""
        if self._failure is None:
            self._failure = error
        for woken in (*self._taking, *(woken for waiting in self._leasing.values() for woken in waiting)):
            if not woken.done():
                woken.set_exception(error)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
