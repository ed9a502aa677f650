"""What may be asked of the replay buffer: one method a verb, for the service that answers and the client that asks.

The service in :mod:`buffers.service` implements this protocol, and :mod:`asyncrl.run.buffer_client` asks it over TCP.
Arguments and results travel as msgpack of the types that stand here, so msgspec must be able to decode every annotation.
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
    """The verbs of the replay buffer. Every method may raise ``ComponentFailed`` once the buffer has failed or was closed."""

    async def lease(self, worker: WorkerId, version: PolicyVersion, limit: int) -> Sequence[Ticket]:
        """Up to ``limit`` tickets for a worker whose engine has ``version``; empty after a few seconds without one.

        A worker that is behind the published version gets nothing.
        """
        ...

    async def commit(self, records: Sequence[TrajectoryRecord]) -> None:
        """Take in finished episodes; when this returns, they are in the journal. The same episode twice is harmless.

        Raises:
            BudgetExceeded: too many groups failed, of those in whose episodes the policy sampled nothing.
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
        """Note that the worker cannot go on for the time being because of ``message``; empty when it goes on."""
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
        """Make ``version`` the published one, which lets the workers lease that waited for it."""
        ...

    async def checkpointed(self, version: PolicyVersion) -> None:
        """Note that a checkpoint of the learner at ``version`` is durable: earlier batches are never asked for again."""
        ...

    async def statistics(self) -> BufferStatistics:
        """What is held, the whole ledger, and whether the run is paused."""
        ...
