"""What the buffer hands to the learner: which rows, and everything needed to plan and normalise without their payload.

A :class:`Batch` is small and the same on every rank, and planning from it is a pure function. It says where the payload of each
row lies; the data-parallel rank that trains a row reads its payload there.
"""

import msgspec

from asyncrl.core.ids import PolicyVersion, TaskId
from asyncrl.core.payload import TrajectoryRecord


class BatchRow(TrajectoryRecord, frozen=True, array_like=True, kw_only=True):
    """One trajectory of a batch: its record, and what the batch adds to it.

    Attributes:
        loss_tokens: sampled tokens that may enter the loss: those of version ``Batch.oldest_version`` or newer.
        weight: factor of the row's loss terms that makes the sampler unbiased; 1 where the sampler needs none.
        source: the task source that its task was drawn from.
    """

    task_id: TaskId
    loss_tokens: int
    weight: float
    source: str = ""

    @classmethod
    def around(
        cls, record: TrajectoryRecord, task_id: TaskId, source: str, oldest_version: PolicyVersion, weight: float
    ) -> "BatchRow":
        """Make a row of ``record`` for a batch whose loss takes tokens of ``oldest_version`` or newer."""
        loss_tokens = record.trainable_tokens(oldest_version)
        return cls(*msgspec.structs.astuple(record), task_id=task_id, source=source, loss_tokens=loss_tokens, weight=weight)


class Batch(msgspec.Struct, frozen=True):
    """The rows of one training step, in order; the rows of a group are neighbours.

    Attributes:
        version: the policy version being trained.
        oldest_version: sampled tokens older than this never enter the loss (``version - max_staleness``).
    """

    version: PolicyVersion
    oldest_version: PolicyVersion
    rows: tuple[BatchRow, ...]

    def trained(self) -> "Batch":
        """Return this batch without its greedy rows, which are not trained."""
        return msgspec.structs.replace(self, rows=tuple(row for row in self.rows if not row.greedy))
