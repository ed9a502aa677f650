"""References to the bytes of finished trajectories, and the records that bookkeeping works with instead of the bytes.

Control and data are separate: the buffer works with :class:`TrajectoryRecord`, about two hundred bytes, while the trajectory
itself stays in a segment file on the node that made it until a data-parallel rank reads it.
"""

import zlib
from collections.abc import Sequence

import msgspec
import numpy as np

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
    """What bookkeeping knows of one finished trajectory.

    Attributes:
        group_id, sample_index: the episode that it records.
        length: tokens in the trajectory.
        sampled: how many tokens each policy version sampled, oldest version first; every entry has at least 1 token.
        reward: final reward.
        payload: where the trajectory lies.
        turn_rewards: the environment's reward of each turn.
        rewards: the rewards that ``AlgorithmConfig.reward_names`` lists, in that order.
        greedy: whether it was sampled at temperature 0. No loss trains it; other rewards are compared with its reward.
        committed_version: the published version when the buffer took the trajectory in, and -1 before that; it splits staleness
            into in-flight and in-buffer.
        prompt_length: leading tokens that nobody sampled.
        prompt_checksums: CRC-32 of their beginnings, see :func:`prompt_checksums`. From these the learner plans which rows
            can share their beginning, before it has any payload.
        reward_parts: the parts of the turns' rewards that have names, each summed over the episode.
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
    committed_version: PolicyVersion = PolicyVersion(-1)
    prompt_length: int = 0
    prompt_checksums: tuple[int, ...] = ()
    reward_parts: dict[str, float] = {}

    @classmethod
    def of(cls, trajectory: Trajectory, payload: PayloadRef, reward_names: Sequence[str] = ()) -> "TrajectoryRecord":
        """Check a trajectory whose bytes lie at ``payload``, and return its record.

        Raises:
            ValueError: the trajectory is malformed, or lacks one of the named rewards.
        """
        trajectory.check()
        sampled: dict[PolicyVersion, int] = {}
        for span in trajectory.version_spans:
            if span.version != NOT_SAMPLED:
                sampled[span.version] = sampled.get(span.version, 0) + span.end - span.start
        parts: dict[str, float] = {}
        for turn in trajectory.turns:
            for name, value in turn.rewards.items():
                parts[name] = parts.get(name, 0.0) + value
        prompt = trajectory.token_ids[: trajectory.prompt_length()]
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
            prompt_length=len(prompt),
            prompt_checksums=prompt_checksums(prompt),
            reward_parts=parts,
        )

    def trainable_tokens(self, oldest_version: PolicyVersion) -> int:
        """Count the sampled tokens of version ``oldest_version`` or newer; a greedy trajectory has none."""
        if self.greedy:
            return 0
        trainable = 0  # a loop, since a generator expression takes twice as long for the usual one or two versions
        for version, tokens in self.sampled:
            if version >= oldest_version:
                trainable += tokens
        return trainable


_SHORTEST_CHECKED = 64
"""Shorter common beginnings get no checksum: sharing them saves little, and each checksum lengthens every record."""


def checked_lengths(length: int) -> list[int]:
    """Return the lengths of a prompt's beginnings that get a checksum: 64, 128, 256, ..., and the whole ``length``.

    If two prompts begin with the same 64 or more tokens, these lengths find at least half of the common beginning, and all of
    it if the prompts are equal.
    """
    lengths = []
    checked = _SHORTEST_CHECKED
    while checked < length:
        lengths.append(checked)
        checked *= 2
    return [*lengths, length] if length else []


def prompt_checksums(prompt: np.ndarray) -> tuple[int, ...]:
    """Return the CRC-32 of the first tokens of ``prompt`` (int32 [n]), for each of :func:`checked_lengths`."""
    tokens = np.ascontiguousarray(prompt, np.int32).data.cast("B")
    checksums, checksum, start = [], 0, 0
    for end in checked_lengths(len(prompt)):
        checksum = zlib.crc32(tokens[4 * start : 4 * end], checksum)
        checksums.append(checksum)
        start = end
    return tuple(checksums)
