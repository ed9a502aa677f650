"""What may be asked of the replay buffer: one method for each call, for the service that answers and the client that asks.

The service in :mod:`buffers.service` implements this protocol, and :mod:`asyncrl.run.buffer_client` asks it over TCP.
Arguments and results travel as msgpack of the types annotated here, so msgspec must be able to decode each of them.
"""

from collections.abc import Sequence
from typing import Protocol

from asyncrl.core.batch import Batch
from asyncrl.core.buffer_statistics import BufferStatistics
from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.payload import TrajectoryRecord
from asyncrl.core.ticket import Ticket


class BufferApi(Protocol):
    """The calls of the replay buffer. Every method may raise ``ComponentFailed`` once the buffer has failed or was closed."""

    async def lease(self, worker: WorkerId, version: PolicyVersion, limit: int) -> Sequence[Ticket]:
        """Up to ``limit`` tickets for a worker whose engine has ``version``; empty after a few seconds without one.

        A worker that is behind the published version gets nothing.
        """
        ...

    async def commit(self, records: Sequence[TrajectoryRecord]) -> None:
        """Take in finished episodes; when this returns, they are in the journal. Committing an episode twice does no harm.

        Raises:
            BudgetExceeded: too many groups failed because the policy sampled nothing in their episodes.
        """
        ...

    async def fail(self, group_id: GroupId, sample_index: int, kind: FailureKind, reason: str) -> None:
        """Take an episode back that failed.

        Raises:
            BudgetExceeded: it was one too many.
        """
        ...

    async def renew(self, worker: WorkerId, running: Sequence[GroupId]) -> Sequence[GroupId]:
        """Note that the worker lives; returns those of its ``running`` groups that nobody waits for any more."""
        ...

    async def lost(self, worker: WorkerId) -> None:
        """Issue the open episodes of a worker that is gone again.

        Raises:
            BudgetExceeded: it was one too many.
        """
        ...

    async def report_pause(self, worker: WorkerId, message: str) -> None:
        """Note that the worker cannot go on for now, because of ``message``; an empty one says that it goes on."""
        ...

    async def take(self, version: PolicyVersion) -> Batch:
        """The batch to train at ``version``; the same one however often it is asked for.

        Raises:
            DeadlineExceeded: there was none for ``deadlines.batch`` seconds; says what was waited for, where, and why.
        """
        ...

    async def trained(self, version: PolicyVersion) -> None:
        """Note that the batch of ``version`` was trained."""
        ...

    async def advance(self, version: PolicyVersion) -> None:
        """Make ``version`` the published one; workers that waited for it may lease."""
        ...

    async def checkpointed(self, version: PolicyVersion) -> None:
        """Note that the learner has a checkpoint at ``version`` on disk: earlier batches are never asked for again."""
        ...

    async def statistics(self) -> BufferStatistics:
        """What is held, the whole ledger, and whether the run is paused."""
        ...
