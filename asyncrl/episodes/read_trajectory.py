"""One kept trajectory as a typed value: a row of :data:`asyncrl.episodes.schema.SCHEMA`, and what readers compute from it."""

import math
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
import numpy as np

from asyncrl.core.ids import NOT_SAMPLED
from asyncrl.core.messages import CallOutcome
from asyncrl.core.routed_experts import RoutedExperts
from asyncrl.core.trajectory import StartReason
from asyncrl.episodes.schema import Kind, TokenFate


class ReadCall(msgspec.Struct, frozen=True):
    """One tool call; see :class:`asyncrl.core.messages.CallRecord`."""

    tool: str
    seconds: float
    outcome: CallOutcome
    problem: str


class TurnRecord(msgspec.Struct, frozen=True):
    """One turn: tokens ``[start, end)``, their text, and the environment's ``answer`` to them."""

    start: int
    end: int
    text: str
    answer: str
    reward: float
    calls: tuple[ReadCall, ...]
    generating_s: float
    environment_s: float


class ReadExperts(msgspec.Struct, frozen=True):
    """The experts that the leading tokens went to, as they lie in a file."""

    experts: int
    layers: int
    per_token: int
    packed: bytes

    def chosen(self) -> np.ndarray:
        """Return int16 [tokens, layers, per_token], the numbers of the experts."""
        packed = np.frombuffer(self.packed, np.uint8)
        return RoutedExperts(self.experts, self.layers, self.per_token, packed).chosen()


class Branch(msgspec.Struct, frozen=True):
    """A trajectory in the tree of its episode; the fields are columns, but for ``tokens``, which counts them all."""

    part: int
    role: str
    parent: int | None
    shared: int
    why: StartReason
    trained: bool
    tokens: int


class ReadTrajectory(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table. The fields are its columns, whose meaning the schema's metadata tells.

    Those of trajectories are None in files of earlier releases, where an episode is one trajectory.
    """

    kind: Kind
    step: int | None
    version: int
    environment: str
    source: str | None
    task_id: str
    group_id: int
    sample_index: int
    attempt: int
    part: int | None = None
    parts: int | None = None
    role: str | None = None
    parent: int | None = None
    shared: int | None = None
    why: StartReason | None = None
    trained: bool | None = None
    temperature: float
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    logprob_convention: str | None = None
    stop_reason: str
    reward: float
    role_rewards: dict[str, float] | None = None
    metrics: dict[str, float]
    prompt: str
    turns: tuple[TurnRecord, ...]
    turn_rewards: tuple[dict[str, float], ...] | None = None
    began: datetime
    queued_s: float
    reset_s: float
    scoring_s: float
    token_ids: list[int]
    versions: list[int]
    logprobs: list[float]
    learner_logprobs: list[float] | None
    teacher_logprobs: list[float] | None = None
    advantages: list[float] | None
    weights: list[float] | None
    fates: list[TokenFate]
    experts: ReadExperts | None = None

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "ReadTrajectory":
        """Make a trajectory of a row, as ``Table.to_pylist`` returns it.

        Raises:
            msgspec.ValidationError: a column is missing or null that must not be.
        """
        rewards = row.get("turn_rewards")
        named = None if rewards is None else [dict(each or ()) for each in rewards]
        maps = {name: dict(row[name]) for name in ("metrics", "role_rewards") if row.get(name) is not None}
        return msgspec.convert({**row, "metrics": {}, **maps, "turn_rewards": named}, cls)

    @property
    def generating_s(self) -> float:
        """Seconds that the engine took for the turns."""
        return sum(turn.generating_s for turn in self.turns)

    @property
    def environment_s(self) -> float:
        """Seconds that the environment took to react to the turns."""
        return sum(turn.environment_s for turn in self.turns)

    @property
    def seconds(self) -> float:
        """Seconds from the ticket to the reward."""
        return self.queued_s + self.reset_s + self.generating_s + self.environment_s + self.scoring_s

    def sampled(self) -> list[int]:
        """Return the positions of the tokens that the policy sampled."""
        return [position for position, version in enumerate(self.versions) if version != NOT_SAMPLED]

    def staleness(self) -> list[int]:
        """Return the staleness of each sampled token, in policy versions."""
        return [self.version - version for version in self.versions if version != NOT_SAMPLED]

    def gaps(self) -> list[float]:
        """Return |learner - engine| log-probability (nats) of each sampled token; nothing where no loss saw it."""
        if self.learner_logprobs is None:
            return []
        return [abs(self.learner_logprobs[position] - self.logprobs[position]) for position in self.sampled()]

    def trained_tokens(self) -> list[int]:
        """Return the positions of the tokens that entered the loss."""
        return [position for position, fate in enumerate(self.fates) if fate is TokenFate.TRAINED]

    def fate_counts(self) -> dict[TokenFate, int]:
        """Count the tokens of each fate, in the order of :class:`TokenFate`; fates that no token had are left out."""
        counts = Counter(self.fates)
        return {fate: counts[fate] for fate in TokenFate if counts[fate]}


def mean(values: list[float] | list[int]) -> float:
    """Return the mean of finite values, or NaN if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
