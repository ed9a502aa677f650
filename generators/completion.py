"""The interface of an inference engine, as episodes and workers use it, and its result for one turn."""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec
import numpy as np

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.measures.time_split import GeneratorTime
from asyncrl.core.publication import Publication
from asyncrl.core.routed_experts import RoutedExperts
from asyncrl.core.trajectory import Sampling, VersionSpan
from asyncrl.generators.concurrency import EngineLoad


class Completion(msgspec.Struct, frozen=True):
    """The tokens sampled in one turn.

    Attributes:
        token_ids: int32 [T], including the stop token, if there is one.
        logprobs: float32 [T], log-probabilities in nats under the distribution that was sampled from; see
            :attr:`asyncrl.core.trajectory.Sampling.convention`.
        spans: which policy version sampled which tokens; they cover ``[0, T)``, counted from the first sampled token.
        finished_by_stop: whether the last token is one of the stop tokens; if not, the turn reached ``max_tokens``.
        experts: those that the tokens went to whose experts were not known yet, up to the last but one; None if the engine does
            not say.
    """

    token_ids: np.ndarray
    logprobs: np.ndarray
    spans: tuple[VersionSpan, ...]
    finished_by_stop: bool
    experts: RoutedExperts | None = None


class ScoredRow(msgspec.Struct, frozen=True):
    """What an engine computes of given tokens.

    Attributes:
        version: the policy version that computed it.
        logprobs: float32 [T - 1], nats at temperature 1, of all tokens but the first.
    """

    version: PolicyVersion
    logprobs: np.ndarray


class EngineUse(msgspec.Struct, frozen=True):
    """Counters of one engine since it was ready. They only grow, except for ``last_pause_seconds``.

    Attributes:
        tokens_generated: number of sampled tokens.
        tokens_by_version: number of sampled tokens by the policy version that sampled them.
        paused_seconds: seconds in which the engine was paused.
        last_pause_seconds: seconds for which loading the last publication paused the engine.
        time: seconds of the engine's steps and processes, as of the last :meth:`Engine.report_load`.
    """

    tokens_generated: int = 0
    tokens_by_version: Counter[PolicyVersion] = msgspec.field(default_factory=Counter)
    paused_seconds: float = 0.0
    last_pause_seconds: float = 0.0
    time: GeneratorTime = GeneratorTime()


class Sampler(Protocol):
    """Samples turns."""

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        known_experts: int = 0,
    ) -> Completion:
        """Sample one turn after ``token_ids``. Cancelling the call abandons the request.

        Args:
            known_experts: of how many of ``token_ids`` the caller knows the experts already.

        Raises:
            ComponentFailed: the engine died, loading a publication failed, or it does not say which experts it chose although
                it was started to.
        """
        ...


class Samplers(Protocol):
    """Gives each episode what samples its turns."""

    def episode(self) -> AbstractContextManager[Sampler]:
        """Return the context of one episode, which yields what samples its turns: by ``generators.updates`` all with the
        engine's version of now, or each with the newest."""
        ...


class Engine(Samplers, Protocol):
    """An inference engine whose weights can be replaced while it generates."""

    @property
    def version(self) -> PolicyVersion:
        """The newest policy version that the engine has, with which new episodes begin."""
        ...

    async def load_publication(self, publication: Publication) -> int:
        """Load published weights while requests run; returns the fingerprint of the loaded weights.

        Raises:
            WeightMismatch: the publication could not be loaded, or not into the whole model.
            ComponentFailed: the engine died.
        """
        ...

    async def report_load(self) -> EngineLoad:
        """What the engine has to do now.

        Raises:
            ComponentFailed: the engine died.
        """
        ...

    def use(self) -> EngineUse:
        """Return the counters since the engine was ready."""
        ...
