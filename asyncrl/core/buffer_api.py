"""The calls of the replay buffer, one method for each, shared by the service that answers and the client that asks.

``buffers/service.py`` implements this protocol, and ``run/buffer/client.py`` calls it over TCP. Arguments and results
travel as msgpack of the types in these annotations, so msgspec must be able to decode each of them.
"""

from collections.abc import Sequence
from typing import Protocol

from asyncrl.core.batch import Batch
from asyncrl.core.episode_records import EpisodeRecord
from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.measures.buffer_statistics import BufferStatistics
from asyncrl.core.ticket import Ticket


class BufferApi(Protocol):
    """The calls of the replay buffer. Every method may raise ``ComponentFailed`` once the buffer has failed or was closed."""

    async def lease(self, worker: WorkerId, version: PolicyVersion, limit: int) -> Sequence[Ticket]:
        """Return up to ``limit`` tickets for a worker whose engine has ``version``; none if there are none within a few seconds.

        A worker that is behind the published version gets no ticket.
        """

    async def commit(self, records: Sequence[EpisodeRecord]) -> None:
        """Take in finished episodes; when this returns, they are in the journal. Committing an episode twice does no harm.

        Raises:
            BudgetExceeded: too many groups failed because the policy sampled nothing in their episodes.
        """

    async def fail(self, group_id: GroupId, sample_index: int, kind: FailureKind, reason: str, incident: str = "") -> None:
        """Take back an episode that failed.

        Args:
            incident: names the event that it failed by; all failures by one incident of episodes that were running when it was
                first told count as one. Empty if it stands alone.

        Raises:
            BudgetExceeded: this was one failure too many.
        """

    async def leave_out(self, group_id: GroupId, reason: str) -> None:
        """End a group whose task's prompt leaves no room for a turn, and never draw the task again. It is no failure."""

    async def renew(self, worker: WorkerId, running: Sequence[GroupId]) -> Sequence[GroupId]:
        """Note that the worker is alive, and return those of its ``running`` groups that nobody waits for any more."""

    async def lost(self, worker: WorkerId) -> None:
        """Give up a worker, and issue its open episodes again.

        Raises:
            BudgetExceeded: this was one failure too many.
        """

    async def hand_back(self, worker: WorkerId, why: str) -> None:
        """Issue the open episodes of a worker again, because it was told to end, or its node is gone or out of reach.

        That is no failure. Requests that the worker made before get no tickets; later ones do.

        Args:
            why: the reason, as what follows the worker's name.
        """

    async def report_pause(self, worker: WorkerId, message: str) -> None:
        """Note that the worker cannot go on because of ``message``; an empty message means that it goes on."""

    async def take(self, version: PolicyVersion) -> Batch:
        """Return the batch to train at ``version``; the same one, however often it is asked for.

        Raises:
            DeadlineExceeded: there was no batch for ``deadlines.batch`` seconds; the text says what is missing, where, and why.
        """

    async def trained(self, version: PolicyVersion) -> None:
        """Note that the batch of ``version`` was trained."""

    async def advance(self, version: PolicyVersion) -> None:
        """Make ``version`` the published version, so that workers that have it may lease."""

    async def checkpointed(self, version: PolicyVersion) -> None:
        """Note that the learner has a durable checkpoint of ``version``, and never goes back to before it."""

    async def pace(self, depth: int) -> None:
        """Change the pipeline depth.

        Raises:
            LedgerError: tokens could get over the staleness bound.
        """

    async def statistics(self) -> BufferStatistics:
        """Return what the buffer holds, the whole ledger, and whether the run is paused."""
