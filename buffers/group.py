"""The record of one group: what the buffer knows of it from its first ticket until nobody needs its payload any more.

A record is data; :mod:`buffers.ledger` moves it from state to state, :mod:`buffers.replay_buffer` decides when.
"""

from collections.abc import Iterator

import msgspec

from asyncrl.core.buffer_statistics import GroupState
from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.payload import PayloadRef, TrajectoryRecord
from asyncrl.core.task import Task


class Group(msgspec.Struct, array_like=True, gc=False):
    """See the module.

    Attributes:
        source: where the task was drawn from.
        size: episodes it is to have.
        attempt: how often the task broke its environment before.
        version: published when it was last leased.
        birth: no token of it, sampled or yet to be sampled, is older than this.
        leases: how often it was leased.
        worker: who generates its ``open`` episodes.
        records: of the finished episodes, by sample index.
        broken_by: how it failed since it was last leased.
        uses: trainings it was handed out for.
        kept: batches that may have to be handed out again and hold rows of it.
        consumed: the sampler will not have it again.
        oldest_sampled: version of its tokens, once it is complete.
        newest_sampled: the same of those that a loss may take.
        advantage: mean over its rows of ``|reward - mean| / standard deviation``, once it is complete.
    """

    id: GroupId
    task: Task
    source: str
    size: int
    attempt: int
    version: PolicyVersion
    birth: PolicyVersion
    worker: WorkerId
    open: list[int]
    records: dict[int, TrajectoryRecord]
    broken_by: list[FailureKind]
    state: GroupState = GroupState.RUNNING
    leases: int = 1
    uses: int = 0
    kept: int = 0
    consumed: bool = False
    oldest_sampled: PolicyVersion = PolicyVersion(0)
    newest_sampled: PolicyVersion = PolicyVersion(0)
    advantage: float = 0.0

    def missing(self) -> list[int]:
        """Indexes of the episodes that are neither finished nor being generated."""
        return [index for index in range(self.size) if index not in self.records and index not in self.open]

    def has_enough(self, min_group: int | None) -> bool:
        """Whether as many episodes finished as the recipe's ``batch.min_group`` asks for."""
        return len(self.records) >= (min_group or self.size)

    def payload(self) -> Iterator[PayloadRef]:
        """Where its finished episodes lie."""
        return (record.payload for record in self.records.values())

    def bytes(self) -> int:
        """Of its finished episodes."""
        return sum(record.payload.size for record in self.records.values())

    def sampled_tokens(self) -> int:
        """Of its finished episodes, greedy ones excepted."""
        return sum(record.trainable_tokens(PolicyVersion(0)) for record in self.records.values())

    def oldest_finished(self) -> PolicyVersion:
        """The oldest version that sampled a token of its finished episodes, of which there must be one."""
        return min(record.sampled[0][0] for record in self.records.values())
