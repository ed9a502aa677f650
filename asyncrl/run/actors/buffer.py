"""The replay buffer as a Ray actor: the plain class, and waiting for it."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import ray

from asyncrl.core.batch import Batch
from asyncrl.core.errors import DeadlineExceeded, FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.ticket import Ticket
from asyncrl.run.actors.output import route_output
from asyncrl.run.tasks import load_tasks
from buffers.replay_buffer import BufferStatistics, ReplayBuffer
from buffers.tasks import TaskSource

LEASE_WAIT_S = 5.0
"""A lease request that finds no ticket is answered empty after this long, so that a lost worker's request does not stay."""


class BufferActor:
    """See :class:`buffers.replay_buffer.ReplayBuffer` for the contract; every change wakes all waiters."""

    def __init__(self, recipe: Recipe, log_file: Path) -> None:
        route_output(log_file)
        self._batch_deadline = recipe.deadlines.batch
        self._groups_per_step = recipe.batch.groups_per_step
        self._buffer = ReplayBuffer(recipe, TaskSource(load_tasks(recipe, "train"), recipe.seed))
        self._changed = asyncio.Condition()
        self._leased_by: dict[GroupId, WorkerId] = {}

    async def ready(self) -> None:
        """Answers once the actor is up and its tasks are loaded."""

    async def lease(self, worker: WorkerId, version: PolicyVersion, limit: int) -> Sequence[Ticket]:
        """Tickets for a worker that is at the clock; empty after ``LEASE_WAIT_S`` without one."""
        try:
            await self._wait(lambda: version == self._buffer.version and self._buffer.room() > 0, LEASE_WAIT_S)
        except TimeoutError:
            return []
        tickets = self._buffer.issue(limit)
        self._leased_by.update({ticket.group_id: worker for ticket in tickets})
        return tickets

    async def commit(self, rows: Sequence[bytes]) -> None:
        """Take in encoded trajectories."""
        self._buffer.commit(rows)
        await self._notify()

    async def fail(self, group_id: GroupId, kind: FailureKind, reason: str) -> None:
        """Take a failed group back."""
        self._buffer.fail(group_id, kind, reason)
        await self._notify()

    async def take(self, version: PolicyVersion) -> Batch:
        """The next batch for ``version``.

        Raises:
            DeadlineExceeded: after ``deadlines.batch``, saying what is still running where.
        """
        batch: Batch | None = None

        def taken() -> bool:
            nonlocal batch
            batch = self._buffer.take(version, self._groups_per_step)
            if batch is None:
                self._changed.notify_all()  # groups may have expired, which makes room for tickets
            return batch is not None

        try:
            await self._wait(taken, self._batch_deadline)
        except TimeoutError as error:
            raise self._batch_overdue(version) from error
        assert batch is not None
        await self._notify()
        return batch

    def _batch_overdue(self, version: PolicyVersion) -> DeadlineExceeded:
        counts, running = self._buffer.statistics().ledger, self._buffer.running()
        oldest = "no group is running"
        if running:
            where = self._leased_by[running[0].group_id]
            oldest = f"the oldest running group is {running[0].group_id} (task {running[0].task.id}) on {where}"
        return DeadlineExceeded(
            "the learner",
            f"a batch of {self._groups_per_step} groups for version {version} "
            f"({counts.committed} committed, {counts.running} running; {oldest}; the clock stands at {self._buffer.version})",
            self._batch_deadline,
            "look into that worker's log, shorten environment.episode_timeout_s, or raise deadlines.batch",
        )

    async def payload(self, rows: Iterable[tuple[GroupId, int]]) -> list[bytes]:
        """Encoded trajectories of rows that were taken."""
        return self._buffer.payload(rows)

    async def trained(self, batch: Batch) -> None:
        """The batch was trained; its payload is freed."""
        self._buffer.trained(batch)
        for row in batch.rows:
            self._leased_by.pop(row.group_id, None)
        await self._notify()

    async def advance(self, version: PolicyVersion) -> None:
        """Move the clock, which wakes the workers that wait for it."""
        self._buffer.advance(version)
        await self._notify()

    async def statistics(self) -> BufferStatistics:
        """What is held, and the whole ledger."""
        return self._buffer.statistics()

    async def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(condition)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


RemoteBuffer = ray.remote(BufferActor)
