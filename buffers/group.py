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


class Row(msgspec.Struct, array_like=True, gc=False):
    """A finished episode that is held; ``committed_version`` was published when it was handed in."""

    sample: TrajectoryRecord
    committed_version: PolicyVersion


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
        rows: finished episodes by index.
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
    rows: dict[int, Row]
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
        return [index for index in range(self.size) if index not in self.rows and index not in self.open]

    def has_enough(self, min_group: int | None) -> bool:
        """Whether as many episodes finished as the recipe's ``batch.min_group`` asks for."""
        return len(self.rows) >= (min_group or self.size)

    def payload(self) -> Iterator[PayloadRef]:
        """Where its finished episodes lie."""
        return (row.sample.payload for row in self.rows.values())

    def bytes(self) -> int:
        """Of its finished episodes."""
        return sum(row.sample.payload.size for row in self.rows.values())

    def sampled_tokens(self) -> int:
        """Of its finished episodes, greedy ones excepted."""
        return sum(row.sample.trainable_tokens(PolicyVersion(0)) for row in self.rows.values())

    def oldest_row(self) -> PolicyVersion:
        """The oldest version that sampled a token of its finished episodes, of which there must be one."""
        return min(row.sample.sampled[0][0] for row in self.rows.values())
