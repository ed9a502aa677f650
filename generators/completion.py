"""What an engine gives back for one turn, and what episodes and workers need of an engine."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication
from asyncrl.core.trajectory import VersionSpan
from generators.concurrency import EngineLoad


class Completion(msgspec.Struct, frozen=True):
    """The tokens sampled in one turn.

    Attributes:
        token_ids: int32 [T], the stop token included.
        logprobs: float32 [T], in nats, of the distribution that was sampled from.
        spans: which policy version sampled which tokens, counted from the completion's first; they cover ``[0, T)``.
        finished_by_stop: whether the last token is a stop token; if not, the turn was cut at its length.
    """

    token_ids: np.ndarray
    logprobs: np.ndarray
    spans: tuple[VersionSpan, ...]
    finished_by_stop: bool


class EngineUse(msgspec.Struct, frozen=True):
    """Counters of one engine since it was ready, which only grow.

    Attributes:
        tokens_generated: tokens sampled.
        tokens_by_version: the same, by the policy version that sampled them.
        wall_seconds: seconds since the engine was ready.
        idle_seconds: how many of them nothing was running or the engine was paused.
        paused_seconds: how many of them it was paused.
        request_seconds: how long its requests took, added up.
        last_pause_seconds: how long the last installation kept the engine from generating; the one number that is no counter.
    """

    tokens_generated: int = 0
    tokens_by_version: Counter[PolicyVersion] = msgspec.field(default_factory=Counter)
    wall_seconds: float = 0.0
    idle_seconds: float = 0.0
    paused_seconds: float = 0.0
    request_seconds: float = 0.0
    last_pause_seconds: float = 0.0


class Engine(Protocol):
    """An inference engine whose weights can be replaced while it generates."""

    @property
    def version(self) -> PolicyVersion:
        """The policy version whose weights it samples with."""
        ...

    async def generate(self, token_ids: Sequence[int], *, max_tokens: int, temperature: float, stop_token_id: int) -> Completion:
        """Sample one turn after ``token_ids``. Cancelling the call abandons the request.

        Raises:
            ComponentFailed: the engine died, or an installation failed.
        """
        ...

    async def install(self, publication: Publication) -> int:
        """Load published weights under the running requests; returns the fingerprint of what was loaded.

        Raises:
            WeightMismatch: the publication did not reach the whole model.
        """
        ...

    async def load(self) -> EngineLoad:
        """What the engine has to do now.

        Raises:
            ComponentFailed: the engine died.
        """
        ...

    def use(self) -> EngineUse:
        """Counters since the engine was ready."""
        ...
