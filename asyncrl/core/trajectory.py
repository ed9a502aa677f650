"""The trajectory: the record of one token stream of an episode, exactly as the engine saw it.

Invariants, checked by :func:`Trajectory.check`:
* ``token_ids``, ``logprobs`` and ``loss_mask`` have the same length T;
* ``version_spans`` cover ``[0, T)`` without gap or overlap, and a token has version ``NOT_SAMPLED`` exactly where its mask is 0;
* turns lie inside the trajectory, in order, and every sampled token is in exactly one turn;
* experts, if there are any, are those of all tokens before the last sampled one, or of more;
* a teacher's log-probabilities, where there are any, are one for each sampled token.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from asyncrl.core.ids import NOT_SAMPLED, PolicyVersion
from asyncrl.core.messages import CallRecord
from asyncrl.core.routed_experts import RoutedExperts


class StopReason(StrEnum):
    """Why an episode ended."""

    ENVIRONMENT_DONE = "environment_done"
    """The environment ended it, normally because the model gave its final answer."""
    MAX_TURNS = "max_turns"
    MAX_CALLS = "max_calls"
    """A turn's calls would have gone over ``max_calls``; none of them was run."""
    SAMPLED_TOKENS = "sampled_tokens"
    """The policy had sampled ``max_sampled_tokens`` in all turns together."""
    TURN_LENGTH = "turn_length"
    """A turn reached ``max_turn_tokens`` without its stop token."""
    CONTEXT_LENGTH = "context_length"
    """The next turn would not fit into the model's context."""
    MALFORMED_CALL = "malformed_call"
    """A tool call could not be parsed and the recipe ends the episode there."""
    TOOL_ERROR = "tool_error"
    """A tool raised or timed out and the recipe ends the episode there."""
    MAX_TRAJECTORIES = "max_trajectories"
    """An agent's next request would have begun more than ``max_trajectories``."""
    EPISODE_TIMEOUT = "episode_timeout"


class VersionSpan(msgspec.Struct, frozen=True, array_like=True):
    """Tokens ``[start, end)`` were sampled by policy ``version`` (``NOT_SAMPLED`` if nobody sampled them)."""

    start: int
    end: int
    version: PolicyVersion


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One turn of the model and the environment's reaction to it.

    Attributes:
        start, end: tokens ``[start, end)`` were sampled in one go.
        reward: the environment's reward for this turn.
        calls: the tool calls of the turn, in order, if the environment reports them.
        generating_s: seconds until the engine had sampled the turn, waiting in the engine included.
        environment_s: seconds until the environment had reacted to it.
        rewards: the parts of ``reward`` that have names.
    """

    start: int
    end: int
    reward: float
    calls: tuple[CallRecord, ...] = ()
    generating_s: float = 0.0
    environment_s: float = 0.0
    rewards: dict[str, float] = {}


class EpisodeTimes(msgspec.Struct, frozen=True, array_like=True):
    """When an episode was played, and the seconds of it that belong to no turn.

    Attributes:
        began: when its worker accepted the ticket, in seconds since the epoch.
        queued_s: from then until it was played.
        reset_s: making the environment and resetting it.
        scoring_s: waiting for a reward model's score, and for a teacher's probabilities, after the last turn.
    """

    began: float = 0.0
    queued_s: float = 0.0
    reset_s: float = 0.0
    scoring_s: float = 0.0


class LogprobConvention(StrEnum):
    """The distribution that recorded log-probabilities are of."""

    FULL_SOFTMAX = "full_softmax"
    """``softmax(logits / temperature)`` over the whole vocabulary."""
    KEPT_SET = "kept_set"
    """``softmax(logits / temperature)``, renormalised over the tokens that top-k, top-p and min-p kept."""
    GREEDY = "greedy"
    """Temperature 0: the token was the most probable one, and its log-probability is that under ``softmax(logits)``."""


class Sampling(msgspec.Struct, frozen=True):
    """How tokens are sampled, and so what ``logprobs`` mean.

    Attributes:
        temperature: the temperature of the softmax; 0 is greedy.
        top_p: the smallest set of most probable tokens with this probability is kept; 1 keeps all.
        top_k: this many most probable tokens are kept; 0 keeps all.
        min_p: tokens are kept that have at least this share of the most probable token's probability; 0 keeps all.
        stop: texts and ids of tokens at which a turn ends, besides those that the model ends its turns with.
    """

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str | int, ...] = ()

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The texts at which a turn ends: with the token that completes one."""
        return tuple(each for each in self.stop if isinstance(each, str))

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The tokens at which a turn ends as well."""
        return tuple(each for each in self.stop if isinstance(each, int))

    @property
    def truncated(self) -> bool:
        """Whether some tokens are never sampled because of top-p, top-k or min-p."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)

    @property
    def convention(self) -> LogprobConvention:
        """What recorded log-probabilities are of: always of the distribution that was sampled from, as engines are asked for
        vLLM's ``processed_logprobs``; a greedy choice is no sample."""
        if self.temperature == 0:
            return LogprobConvention.GREEDY
        return LogprobConvention.KEPT_SET if self.truncated else LogprobConvention.FULL_SOFTMAX


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
        experts: those that the engine sent its tokens to; None if the engine was not asked.
        teacher_logprobs: float32 [sampled tokens], in order, log-probability (nats, temperature 1) of each by the teacher of
            ``algorithm.teacher``; None where no teacher was asked.
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
    experts: RoutedExperts | None = None
    teacher_logprobs: np.ndarray | None = None

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

    def check(self) -> None:
        """Raise ``ValueError`` naming the broken invariant, if any."""
        length = len(self.token_ids)
        if not len(self.logprobs) == len(self.loss_mask) == length:
            raise ValueError(
                f"{length} tokens, {len(self.logprobs)} logprobs, {len(self.loss_mask)} mask entries: they must be equally long"
            )
        if self.loss_mask.dtype != bool:
            raise ValueError(f"the loss mask has dtype {self.loss_mask.dtype}; it must be bool")
        end = 0
        for span in self.version_spans:
            if span.start != end or span.end <= span.start:
                raise ValueError(f"version span {span} does not continue at token {end}")
            end = span.end
        if end != length:
            raise ValueError(f"version spans end at {end}, the trajectory at {length}")
        # There are few stretches of sampled tokens, so stretches are compared, not tokens.
        masked = _stretches(self.loss_mask)
        if _joined((span.start, span.end) for span in self.version_spans if span.version != NOT_SAMPLED) != masked:
            raise ValueError("the loss mask is not exactly the tokens with a policy version")
        end = 0
        for turn in self.turns:
            if turn.start < end or turn.end > length or turn.end <= turn.start:
                raise ValueError(f"turn {turn} is empty, out of order or outside the trajectory of {length} tokens")
            end = turn.end
        if _joined((turn.start, turn.end) for turn in self.turns) != masked:
            raise ValueError("the loss mask is not exactly the tokens of the turns")
        if self.experts is not None and not max(0, end - 1) <= len(self.experts) <= length:
            raise ValueError(
                f"the experts of {len(self.experts)} tokens are known; they must be those of all {end - 1} before the last "
                f"sampled one, and of no more than all {length}"
            )
        if self.teacher_logprobs is not None and len(self.teacher_logprobs) != (sampled := int(self.loss_mask.sum())):
            raise ValueError(f"{len(self.teacher_logprobs)} log-probabilities of a teacher for {sampled} sampled tokens")


def _stretches(mask: np.ndarray) -> list[int]:
    """Return where stretches of ``True`` begin and end, alternating."""
    content = mask.tobytes()  # bytes are searched several times faster than an array
    if content.count(0) + content.count(1) != len(content):
        raise ValueError("the loss mask holds something other than true and false")
    edges: list[int] = []
    start = content.find(1)
    while start >= 0:
        end = content.find(0, start)
        edges += (start, len(content) if end < 0 else end)
        start = content.find(1, end) if end >= 0 else -1
    return edges


def _joined(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Return where ordered ranges begin and end, alternating; adjacent ranges are one stretch."""
    edges: list[int] = []
    for start, end in ranges:
        if edges and edges[-1] == start:
            edges[-1] = end
        else:
            edges += (start, end)
    return edges


_EXTENSION_OF_DTYPE = {np.dtype(np.int32): 1, np.dtype(np.float32): 2, np.dtype(bool): 3, np.dtype(np.uint8): 4}
_DTYPE_OF_EXTENSION = {code: dtype for dtype, code in _EXTENSION_OF_DTYPE.items()}


def encode_array(value: Any) -> msgspec.msgpack.Ext:
    """Encode an array as an extension of MessagePack: a hook of its encoder."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype in _EXTENSION_OF_DTYPE:
        return msgspec.msgpack.Ext(_EXTENSION_OF_DTYPE[value.dtype], np.ascontiguousarray(value).data.cast("B"))
    raise NotImplementedError(
        f"cannot encode {type(value).__name__}; arrays must be one-dimensional int32, float32, bool or uint8"
    )


def decode_array(code: int, data: memoryview) -> np.ndarray:
    """Decode what :func:`encode_array` returned, as a view into ``data``: a hook of the decoder."""
    if code not in _DTYPE_OF_EXTENSION:
        raise ValueError(f"unknown array code {code}; known: {sorted(_DTYPE_OF_EXTENSION)}")
    return np.frombuffer(data, _DTYPE_OF_EXTENSION[code])
