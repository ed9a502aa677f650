"""Where the bytes of a finished trajectory lie, and what bookkeeping knows of the trajectory without them.

Control and data are apart: the buffer works on :class:`TrajectoryRecord`, some two hundred bytes, while the trajectory itself
stays in a segment file on the node that made it until a data-parallel rank reads it there.
"""

from collections.abc import Sequence

import msgspec

from asyncrl.core.ids import NOT_SAMPLED, GroupId, PolicyVersion
from asyncrl.core.trajectory import StopReason, Trajectory, named_rewards


class PayloadRef(msgspec.Struct, frozen=True, array_like=True):
    """An encoded trajectory: ``size`` bytes at ``offset`` of file ``segment`` in the folder of ``shard``; CRC-32 ``checksum``."""

    shard: int
    segment: str
    offset: int
    size: int
    checksum: int


class TrajectoryRecord(msgspec.Struct, frozen=True, array_like=True):
    """One finished episode of a group, as bookkeeping sees it.

    Attributes:
        length: tokens of the trajectory.
        sampled: how many tokens each policy version sampled, oldest version first; never empty of tokens.
        reward: final reward.
        payload: where the trajectory lies.
        turn_rewards: the environment's reward of each turn.
        rewards: those that the recipe's ``reward_names`` tell apart, in their order.
        greedy: sampled at temperature 0, which no loss can train: it is there for its reward alone.
    """

    group_id: GroupId
    sample_index: int
    length: int
    sampled: tuple[tuple[PolicyVersion, int], ...]
    reward: float
    stop_reason: StopReason
    payload: PayloadRef
    turn_rewards: tuple[float, ...] = ()
    rewards: tuple[float, ...] = ()
    greedy: bool = False

    @classmethod
    def of(cls, trajectory: Trajectory, payload: PayloadRef, reward_names: Sequence[str] = ()) -> "TrajectoryRecord":
        """Make the record of ``trajectory``, once it was checked; its bytes lie at ``payload``.

        Raises:
            ValueError: the trajectory is malformed.
        """
        trajectory.check()
        sampled: dict[PolicyVersion, int] = {}
        for span in trajectory.version_spans:
            if span.version != NOT_SAMPLED:
                sampled[span.version] = sampled.get(span.version, 0) + span.end - span.start
        return cls(
            group_id=trajectory.group_id,
            sample_index=trajectory.sample_index,
            length=len(trajectory),
            sampled=tuple(sorted(sampled.items())),
            reward=trajectory.reward,
            stop_reason=trajectory.stop_reason,
            payload=payload,
            turn_rewards=tuple(turn.reward for turn in trajectory.turns),
            rewards=named_rewards(trajectory, reward_names),
            greedy=trajectory.sampling.temperature == 0,
        )

    def trainable_tokens(self, oldest_version: PolicyVersion) -> int:
        """Number of sampled tokens of version ``oldest_version`` or newer; 0 for a greedy episode."""
        return 0 if self.greedy else sum(tokens for version, tokens in self.sampled if version >= oldest_version)
