"""References to the bytes of finished episodes, and the records that bookkeeping works with instead of the bytes.

Control and data are separate: the buffer works with :class:`EpisodeRecord`, about two hundred bytes, while the episode itself
stays in a segment file on the node that played it until a data-parallel rank reads it.
"""

import zlib
from collections.abc import Sequence

import msgspec
import numpy as np

from asyncrl.core.episode import Episode, named_rewards
from asyncrl.core.ids import NOT_SAMPLED, GroupId, PolicyVersion
from asyncrl.core.routed_experts import RoutedExperts
from asyncrl.core.trajectory import StopReason, Trajectory

Sampled = tuple[tuple[PolicyVersion, int], ...]
"""How many tokens each policy version sampled, oldest version first; every entry has at least 1 token."""


class PayloadRef(msgspec.Struct, frozen=True, array_like=True):
    """An encoded episode: ``size`` bytes at ``offset`` of file ``segment`` in the folder of ``shard``; CRC-32 ``checksum``."""

    shard: int
    segment: str
    offset: int
    size: int
    checksum: int


class TrajectoryRecord(msgspec.Struct, frozen=True, array_like=True):
    """What bookkeeping knows of one trajectory of an episode.

    Attributes:
        length: tokens in the trajectory.
        sampled: how many of its tokens each policy version sampled.
        turn_rewards: the environment's reward of each turn.
        prompt_length: leading tokens that nobody sampled in it.
        prompt_checksums: CRC-32 of their beginnings, see :func:`prompt_checksums`. From these the learner plans which rows
            can share their beginning, before it has any payload.
        role: who asked for it.
        trained: whether its tokens are trained; nobody trains those of a greedy episode.
    """

    length: int
    sampled: Sampled
    turn_rewards: tuple[float, ...] = ()
    prompt_length: int = 0
    prompt_checksums: tuple[int, ...] = ()
    role: str = ""
    trained: bool = True

    @classmethod
    def of(cls, trajectory: Trajectory, *, greedy: bool) -> "TrajectoryRecord":
        """Return the record of a trajectory; ``greedy`` if it was sampled at temperature 0."""
        sampled: dict[PolicyVersion, int] = {}
        for span in trajectory.version_spans:
            if span.version != NOT_SAMPLED:
                sampled[span.version] = sampled.get(span.version, 0) + span.end - span.start
        prompt = trajectory.token_ids[: trajectory.prompt_length()]
        return cls(
            length=len(trajectory),
            sampled=tuple(sorted(sampled.items())),
            turn_rewards=tuple(turn.reward for turn in trajectory.turns),
            prompt_length=len(prompt),
            prompt_checksums=prompt_checksums(prompt, trajectory.experts),
            role=trajectory.role,
            trained=trajectory.trained and not greedy,
        )

    def trainable_tokens(self, oldest_version: PolicyVersion) -> int:
        """Count the sampled tokens of version ``oldest_version`` or newer; one that is not trained has none."""
        if not self.trained:
            return 0
        trainable = 0  # a loop, since a generator expression takes twice as long for the usual one or two versions
        for version, tokens in self.sampled:
            if version >= oldest_version:
                trainable += tokens
        return trainable


class EpisodeRecord(msgspec.Struct, frozen=True, array_like=True):
    """What bookkeeping knows of one finished episode.

    Attributes:
        group_id, sample_index: the episode that it records.
        reward: final reward.
        payload: where the episode lies, with all its trajectories.
        trajectories: the records of its trajectories, in their order.
        rewards: the rewards that ``AlgorithmConfig.reward_names`` lists, in that order.
        role_rewards: final rewards of the roles that have one of their own.
        greedy: whether it was sampled at temperature 0. No loss trains it; other rewards are compared with its reward.
        committed_version: the published version when the buffer took the episode in, and -1 before that; it splits staleness
            into in-flight and in-buffer.
        reward_parts: the parts of the turns' rewards that have names, each summed over the episode.
    """

    group_id: GroupId
    sample_index: int
    reward: float
    stop_reason: StopReason
    payload: PayloadRef
    trajectories: tuple[TrajectoryRecord, ...]
    rewards: tuple[float, ...] = ()
    role_rewards: dict[str, float] = {}
    greedy: bool = False
    committed_version: PolicyVersion = PolicyVersion(-1)
    reward_parts: dict[str, float] = {}

    @classmethod
    def of(cls, episode: Episode, payload: PayloadRef, reward_names: Sequence[str] = ()) -> "EpisodeRecord":
        """Check an episode whose bytes lie at ``payload``, and return its record.

        Raises:
            ValueError: the episode is malformed, or lacks one of the named rewards.
        """
        episode.check()
        parts: dict[str, float] = {}
        for turn in episode.turns():
            for name, value in turn.rewards.items():
                parts[name] = parts.get(name, 0.0) + value
        greedy = episode.sampling.temperature == 0
        return cls(
            group_id=episode.group_id,
            sample_index=episode.sample_index,
            reward=episode.reward,
            stop_reason=episode.stop_reason,
            payload=payload,
            trajectories=tuple(TrajectoryRecord.of(each, greedy=greedy) for each in episode.trajectories),
            rewards=named_rewards(episode, reward_names),
            role_rewards=episode.role_rewards,
            greedy=greedy,
            reward_parts=parts,
        )

    @property
    def length(self) -> int:
        """Count the tokens of all its trajectories."""
        if len(self.trajectories) == 1:  # most episodes have one, and this is asked of each
            return self.trajectories[0].length
        return sum([each.length for each in self.trajectories])

    @property
    def sampled(self) -> Sampled:
        """How many tokens of all its trajectories each policy version sampled."""
        if len(self.trajectories) == 1:
            return self.trajectories[0].sampled
        summed: dict[PolicyVersion, int] = {}
        for trajectory in self.trajectories:
            for version, tokens in trajectory.sampled:
                summed[version] = summed.get(version, 0) + tokens
        return tuple(sorted(summed.items()))

    def trainable_tokens(self, oldest_version: PolicyVersion) -> int:
        """Count the sampled tokens of version ``oldest_version`` or newer that are trained; a greedy episode has none."""
        return 0 if self.greedy else sum([each.trainable_tokens(oldest_version) for each in self.trajectories])

    def newest_trained(self) -> PolicyVersion | None:
        """Return the newest version of its tokens that are trained; None if none is."""
        if self.greedy:
            return None
        if len(self.trajectories) == 1:
            only = self.trajectories[0]
            return only.sampled[-1][0] if only.trained and only.sampled else None
        return max((each.sampled[-1][0] for each in self.trajectories if each.trained and each.sampled), default=None)

    def reward_of(self, role: str) -> float:
        """Return the final reward of a role: its own, or else the episode's."""
        return self.role_rewards.get(role, self.reward)


def compared_rewards(group: Sequence[EpisodeRecord]) -> dict[str | None, dict[int, float]]:
    """Return the rewards by which the episodes of a group are compared to train them.

    Trajectories of a role that has a reward of its own are compared by that, with the other episodes that have it; all others by
    the rewards of their episodes.

    Returns:
        By role, and by None where it is the episodes' own: the reward of each episode that has one, by its place in ``group``.
        Empty if nothing in the group is trained.
    """
    used: dict[str | None, None] = {}
    for episode in group:
        for trajectory in () if episode.greedy else episode.trajectories:
            if trajectory.trained:
                used[trajectory.role if trajectory.role in episode.role_rewards else None] = None
    if [*used] == [None]:
        return {None: {place: episode.reward for place, episode in enumerate(group)}}
    return {
        role: {
            place: episode.reward if role is None else episode.role_rewards[role]
            for place, episode in enumerate(group)
            if role is None or role in episode.role_rewards
        }
        for role in used
    }


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


def prompt_checksums(prompt: np.ndarray, experts: RoutedExperts | None = None) -> tuple[int, ...]:
    """Return the CRC-32 of the first tokens of ``prompt`` (int32 [n]), for each of :func:`checked_lengths`.

    Args:
        experts: those of the tokens, if they are known: tokens that went to other experts are not computed once for two rows.
    """
    tokens = np.ascontiguousarray(prompt, np.int32).data.cast("B")
    routed, size = (b"", 0) if experts is None else (experts.packed.tobytes(), experts.token_bytes)
    checksums, checksum, start = [], 0, 0
    for end in checked_lengths(len(prompt)):
        checksum = zlib.crc32(tokens[4 * start : 4 * end], checksum)
        checksum = zlib.crc32(routed[size * start : size * end], checksum)
        checksums.append(checksum)
        start = end
    return tuple(checksums)
