"""The episode: what was played for one sample of a group, as one or more trajectories.

An episode is encoded once, by the worker that played it. These bytes lie in a payload file until a data-parallel rank reads them
there; the buffer and its journal hold only its record.

Invariants, checked by :func:`Episode.check`:
* there is at least one trajectory, and ``part`` is its place among them;
* a trajectory's parent comes before it, and its first ``shared`` tokens are those that its parent begins with;
* nobody sampled these in it: a token that the policy sampled is sampled in exactly one trajectory.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from asyncrl.core.ids import GroupId, TaskId
from asyncrl.core.reward_range import LARGEST_REWARD, is_reward
from asyncrl.core.trajectory import (
    EpisodeTimes,
    Sampling,
    StartReason,
    StopReason,
    Trajectory,
    Turn,
    decode_array,
    encode_array,
)


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """What was played for one sample of a group.

    Attributes:
        attempt: how often the task had been given up before.
        trajectories: its token streams; most environments make one.
        reward: final reward.
        role_rewards: final rewards of the roles that have one of their own; the others have ``reward``.
        sampling: how the tokens of all its trajectories were sampled.
        metrics: numbers the environment reports, e.g. ``tool_calls``.
        times: when it was played, and the time that belongs to no turn.
        traffic: what its agent asked and was answered, see :mod:`asyncrl.generators.gateway.traffic`; empty if it is not
            kept.
    """

    task_id: TaskId
    group_id: GroupId
    sample_index: int
    attempt: int
    trajectories: tuple[Trajectory, ...]
    reward: float
    role_rewards: dict[str, float] = {}
    stop_reason: StopReason
    sampling: Sampling
    metrics: dict[str, float] = {}
    times: EpisodeTimes = EpisodeTimes()
    traffic: bytes = b""

    def __len__(self) -> int:
        """Count the tokens of all its trajectories, those that they share as often as they have them."""
        return sum(map(len, self.trajectories))

    def turns(self) -> Iterator[Turn]:
        """Iterate over the turns of all its trajectories, one trajectory after the other."""
        return (turn for trajectory in self.trajectories for turn in trajectory.turns)

    def final_trajectory(self) -> Trajectory:
        """Return the trajectory with the final answer: of the first one's role, the last that has a turn."""
        first = self.trajectories[0]
        return next((each for each in reversed(self.trajectories) if each.role == first.role and each.turns), first)

    def reward_of(self, role: str) -> float:
        """Return the final reward of a role: its own, or else the episode's."""
        return self.role_rewards.get(role, self.reward)

    def check(self) -> None:
        """Raise ``ValueError`` naming the broken invariant, if any."""
        if not self.trajectories:
            raise ValueError("the episode has no trajectory")
        for role, reward in self.role_rewards.items():
            if not is_reward(reward):
                raise ValueError(
                    f"role {role!r} has the reward {reward}; it must be a number of at most {LARGEST_REWARD:g} in size"
                )
        for place, trajectory in enumerate(self.trajectories):
            if trajectory.part != place:
                raise ValueError(f"trajectory {place} says that it is part {trajectory.part}")
            if (trajectory.why is StartReason.FIRST) != (place == 0):
                raise ValueError(f"trajectory {place} was begun for the reason {trajectory.why}; only trajectory 0 is the first")
            _check_parent(trajectory, self.trajectories)
            try:
                trajectory.check()
            except ValueError as error:
                raise ValueError(f"trajectory {place}: {error}") from error


def _check_parent(trajectory: Trajectory, among: tuple[Trajectory, ...]) -> None:
    part, parent, shared = trajectory.part, trajectory.parent, trajectory.shared
    if parent is None:
        if shared:
            raise ValueError(f"trajectory {part} shares {shared} tokens with a parent, and has none")
        return
    if not 0 <= parent < part:
        raise ValueError(f"trajectory {part} has parent {parent}; a parent comes before it")
    if not 0 <= shared <= min(trajectory.prompt_length(), len(among[parent])):
        raise ValueError(f"trajectory {part} shares {shared} tokens: more than its prompt, or than its parent, has")
    if not np.array_equal(trajectory.token_ids[:shared], among[parent].token_ids[:shared]):
        raise ValueError(f"the first {shared} tokens of trajectory {part} are not those of its parent {parent}")


FINAL_REWARD = "reward"
"""Name of the final reward in a recipe that names several rewards."""


def named_rewards(episode: Episode, names: Sequence[str]) -> tuple[float, ...]:
    """Return the rewards of an episode with these names: the final reward for :data:`FINAL_REWARD`, and metrics for other names.

    Metrics are sums over an episode, so a metric is 0 if the episode was cut off before the environment reported it.

    Raises:
        ValueError: the environment ended the episode without reporting one of them, a value is not a number or too large, or
            roles have rewards of their own, with which these cannot be combined.
    """
    if names and episode.role_rewards:
        raise ValueError(
            f"the episode has a reward for each of the roles {sorted(episode.role_rewards)}, and algorithm.advantage.rewards "
            "compares rewards of the whole episode; use an advantage without `rewards`, or one reward for all roles"
        )
    found = [episode.reward if name == FINAL_REWARD else episode.metrics.get(name) for name in names]
    for name, value in zip(names, found, strict=True):
        if value is None and episode.stop_reason is StopReason.ENVIRONMENT_DONE:
            reported = ", ".join(sorted(episode.metrics)) or "none"
            raise ValueError(f"the episode has no metric {name!r} to be rewarded by; its environment reports {reported}")
        if value is not None and not is_reward(value):
            raise ValueError(
                f"the episode's reward {name!r} is {value}; it must be a number of at most {LARGEST_REWARD:g} in size"
            )
    return tuple(0.0 if value is None else value for value in found)


def with_trained_roles(episode: Episode, roles: Sequence[str] | None) -> Episode:
    """Return the episode with only the trajectories of ``roles`` marked to be trained; None marks all."""
    if roles is None:
        return episode
    trajectories = [msgspec.structs.replace(each, trained=each.role in roles) for each in episode.trajectories]
    return msgspec.structs.replace(episode, trajectories=tuple(trajectories))


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_array)
_decoder = msgspec.msgpack.Decoder(Episode, ext_hook=decode_array)


def encode(episode: Episode) -> bytes:
    """Encode an episode as MessagePack, about 9 bytes a token."""
    return _encoder.encode(episode)


def decode(data: bytes) -> Episode:
    """Decode what :func:`encode` returned. Arrays are read-only views into ``data``.

    Raises:
        msgspec.DecodeError: the bytes are not an episode.
    """
    return _decoder.decode(data)
