"""What the buffer knows of one group, from its first ticket until its payload is no longer needed.

A group is plain data; ``buffers/ledger.py`` moves it from state to state, and ``buffers/replay_buffer.py`` decides when.
"""

from collections.abc import Iterator

import msgspec

from asyncrl.core.episode_records import EpisodeRecord, PayloadRef
from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.measures.buffer_statistics import GroupState
from asyncrl.core.task import Task
from asyncrl.core.ticket import Ticket


class Group(msgspec.Struct, array_like=True, gc=False):
    """One group of episodes.

    Attributes:
        source: name of the source that the task was drawn from.
        task_index: the task's place in its source.
        attempt: how often its task broke the environment before.
        version: the published version when the group was last leased.
        birth: none of its tokens, sampled or still to be sampled, is older than this version.
        worker: the worker that generates its ``open`` episodes.
        open: sample indexes of the episodes being generated.
        records: records of the finished episodes, by sample index.
        broken_by: the kinds of failure since it was last leased.
        leases: how often it was leased.
        uses: how often it was handed out for training.
        kept: number of kept batches that hold it.
        consumed: whether no later batch will hold it.
        oldest_sampled: the oldest version of its tokens, once it is complete.
        newest_sampled: the newest version of those of its tokens that a loss may take, once it is complete.
        leased: number of its last lease, among those of all groups.
        advantage: mean over its episodes of ``|reward - mean| / standard deviation``, once it is complete.
    """

    id: GroupId
    task: Task
    source: str
    task_index: int
    size: int
    attempt: int
    version: PolicyVersion
    birth: PolicyVersion
    worker: WorkerId
    open: list[int]
    records: dict[int, EpisodeRecord]
    broken_by: list[FailureKind]
    state: GroupState = GroupState.RUNNING
    leases: int = 1
    uses: int = 0
    kept: int = 0
    consumed: bool = False
    oldest_sampled: PolicyVersion = PolicyVersion(0)
    newest_sampled: PolicyVersion = PolicyVersion(0)
    advantage: float = 0.0
    leased: int = 0

    def ticket(self) -> Ticket:
        """Return the ticket for the episodes that are open."""
        return Ticket(self.id, self.task, tuple(self.open), self.attempt, self.version, self.source)

    def missing(self) -> list[int]:
        """List the sample indexes of the episodes that are neither finished nor being generated."""
        return [index for index in range(self.size) if index not in self.records and index not in self.open]

    def has_enough(self, min_group: int | None) -> bool:
        """Whether as many episodes are finished as the recipe's ``batch.min_group`` asks for."""
        return len(self.records) >= (min_group or self.size)

    def payload(self) -> Iterator[PayloadRef]:
        """Iterate over the payload references of the group's finished episodes."""
        return (record.payload for record in self.records.values())

    def bytes(self) -> int:
        """Return the payload bytes of the group's finished episodes."""
        return sum(record.payload.size for record in self.records.values())

    def sampled_tokens(self) -> int:
        """Count the sampled tokens of the finished episodes, except greedy ones."""
        return sum(record.trainable_tokens(PolicyVersion(0)) for record in self.records.values())

    def oldest_finished(self) -> PolicyVersion:
        """Return the oldest version that sampled a token of the finished episodes; there must be at least one."""
        return min(record.sampled[0][0] for record in self.records.values())
