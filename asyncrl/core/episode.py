"""The episode: what was played for one sample of a group, as one or more trajectories.

An episode is encoded once, by the worker that played it. These bytes lie in a payload file until a data-parallel rank reads them
there; the buffer and its journal hold only its record.

Invariants, checked by :func:`Episode.check`:
* there is at least one trajectory, and ``part`` is its place among them;
* a trajectory's parent comes before it, and its first ``shared`` tokens are those that its parent begins with;
* nobody sampled these in it: a token that the policy sampled is sampled in exactly one trajectory.
"""

from enum import StrEnum

import msgspec
import numpy as np

from asyncrl.core.ids import GroupId, TaskId
from asyncrl.core.trajectory import (
    EpisodeTimes,
    Sampling,
    StopReason,
    Turn,
    VersionSpan,
    check_stream,
    decode_array,
    encode_array,
)


class StartReason(StrEnum):
    """Why a trajectory was begun."""

    FIRST = "first"
    """It is the first of its episode."""
    HISTORY_REWRITTEN = "history_rewritten"
    """A request's messages were not those of any trajectory, continued."""
    PARALLEL = "parallel"
    """The trajectory that a request continued was continued by another request already."""
    OTHER_TOOLS = "other_tools"
    """A request came with other tools, or other arguments of the template."""
    OTHER_ROLE = "other_role"
    """A request came from another role."""


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one token stream of an episode, never re-tokenized.

    Attributes:
        token_ids: int32 [T], prompt, sampled turns and tool responses in the order the engine saw them.
        logprobs: float32 [T], behaviour log-probability (nats) of each token sampled in it; 0 elsewhere.
        loss_mask: bool [T], true where the policy sampled the token in it.
        version_spans: which policy version sampled which tokens, from the engine's own report.
        turns: the sampled segments and their rewards.
        part: its place among the trajectories of the episode, from 0, in the order in which they were begun.
        role: who asked for it; empty where the environment knows only one.
        parent: the part that it branched off; None if it begins anew.
        shared: how many leading tokens are a copy of the parent's, sampled there or not; nobody sampled them here.
        why: why it was begun.
        trained: whether the recipe trains its role.
    """

    token_ids: np.ndarray
    logprobs: np.ndarray
    loss_mask: np.ndarray
    version_spans: tuple[VersionSpan, ...]
    turns: tuple[Turn, ...]
    part: int = 0
    role: str = ""
    parent: int | None = None
    shared: int = 0
    why: StartReason = StartReason.FIRST
    trained: bool = True

    def __len__(self) -> int:
        return len(self.token_ids)

    def prompt_length(self) -> int:
        """Count the leading tokens that nobody sampled in it."""
        return self.turns[0].start if self.turns else len(self)

    def versions(self) -> np.ndarray:
        """Return int32 [T], the policy version that sampled each token in it, ``NOT_SAMPLED`` elsewhere."""
        spans = self.version_spans
        return np.repeat(
            np.fromiter((s.version for s in spans), np.int32, len(spans)),
            np.fromiter((s.end - s.start for s in spans), np.int64, len(spans)),
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

    def __len__(self) -> int:
        """Count the tokens of all its trajectories, those that they share as often as they have them."""
        return sum(map(len, self.trajectories))

    def check(self) -> None:
        """Raise ``ValueError`` naming the broken invariant, if any."""
        if not self.trajectories:
            raise ValueError("the episode has no trajectory")
        for place, trajectory in enumerate(self.trajectories):
            if trajectory.part != place:
                raise ValueError(f"trajectory {place} says that it is part {trajectory.part}")
            if (trajectory.why is StartReason.FIRST) != (place == 0):
                raise ValueError(f"trajectory {place} was begun for the reason {trajectory.why}; only trajectory 0 is the first")
            _check_parent(trajectory, self.trajectories)
            try:
                check_stream(trajectory)
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
