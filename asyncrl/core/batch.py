"""What the buffer hands to the learner: which rows, and everything needed to plan and normalise without their payload.

The payload of a row travels from the buffer to the data-parallel rank that trains it; a :class:`Batch` itself is small, the same
on every rank, and planning from it is a pure function.
"""

import msgspec

from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.payload import PayloadRef


class RowRecord(msgspec.Struct, frozen=True, array_like=True):
    """One trajectory of a batch, without its payload.

    Attributes:
        group_id, sample_index: the row's name.
        length: tokens in the row.
        loss_tokens: sampled tokens that may enter the loss: those of version ``Batch.oldest_version`` or newer.
        reward: final reward.
        committed_version: the published version when the row was committed; splits staleness into in-flight and in-buffer.
        weight: factor of the row's loss terms that makes the sampler unbiased; 1 where the sampler needs none.
        payload: where the trajectory lies.
        turn_rewards: the environment's reward of each turn.
        rewards: those that the recipe's ``reward_names`` tell apart, in their order.
        greedy: it is there for its reward alone, with which others are compared; none of its tokens enters the loss.
    """

    group_id: GroupId
    task_id: TaskId
    sample_index: int
    length: int
    loss_tokens: int
    reward: float
    committed_version: PolicyVersion
    weight: float
    payload: PayloadRef
    turn_rewards: tuple[float, ...] = ()
    rewards: tuple[float, ...] = ()
    greedy: bool = False


class Batch(msgspec.Struct, frozen=True):
    """The rows of one training step, in order, groups contiguous.

    Attributes:
        version: the policy version being trained.
        oldest_version: sampled tokens older than this never enter the loss (``version - max_staleness``).
    """

    version: PolicyVersion
    oldest_version: PolicyVersion
    rows: tuple[RowRecord, ...]

    def trained(self) -> "Batch":
        """The same without greedy rows."""
        return msgspec.structs.replace(self, rows=tuple(row for row in self.rows if not row.greedy))
