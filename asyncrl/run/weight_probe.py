"""Probes whether an engine samples with what the learner trained: both score a few rows of the batch with the same version.

Fingerprints prove that an engine received the learner's bytes. A probe shows what they cannot: that both compute the same policy
with them. What always holds: neither training nor generation waits for a probe, but for the learner's forward pass over its few
rows; values of different versions are never compared; and a difference beyond rounding ends the run.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from asyncrl.core.errors import WeightMismatch
from asyncrl.core.measures.gap_cause import GapEvidence, GapSides, likely_cause
from asyncrl.core.measures.gap_sums import GapSums
from asyncrl.core.measures.metrics import Reading
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.measures import metrics
from asyncrl.run.pool.probe_scores import EngineScores, LearnerScores


class ScoringRanks(Protocol):
    """The learner's ranks, as far as a probe needs them; see :class:`asyncrl.run.cluster.Cluster`."""

    async def score(self) -> LearnerScores:
        """Score rows of the last batch, in turn with the ranks' other work."""
        ...


class ScoringGenerators(Protocol):
    """The generators, as far as a probe needs them; see :class:`asyncrl.run.pool.generator_pool.GeneratorPool`."""

    async def score(self, rows: Sequence[Sequence[int]], turn: int) -> EngineScores | None:
        """Have one generator score ``rows``; None if none is up, or it died."""
        ...


class Probe:
    """Probes the first publication and every n-th (``weights.probe_every``)."""

    def __init__(self, recipe: Recipe, ranks: ScoringRanks, generators: ScoringGenerators) -> None:
        self._every, self._ranks, self._generators = recipe.weights.probe_every, ranks, generators
        self._learner_dtype = recipe.learner.dtype
        self._engine_dtypes = {name: pool.dtype for name, pool in recipe.generators.by_pool.items()}
        self._until_next, self._probes = 0, 0
        self._readings: list[Reading] = []

    def due(self) -> bool:
        """Whether the publication that is about to be delivered is to be probed; counts it."""
        if self._every is None:
            return False
        self._until_next -= 1
        if self._until_next >= 0:
            return False
        self._until_next = self._every - 1
        return True

    def readings(self) -> list[Reading]:
        """Return what was measured since the last call."""
        found, self._readings = self._readings, []
        return found

    async def compare(self, delivering: "asyncio.Task[float]") -> None:
        """Compare both sides for the version that is being delivered. To be begun before the ranks are asked for anything else.

        If the engine has got another version meanwhile, or died, the next publication is probed instead.

        Raises:
            WeightMismatch: they differ by more than rounding.
        """
        expected = await self._ranks.score()
        await asyncio.wait({delivering})
        if delivering.cancelled() or delivering.exception() is not None:
            return  # whoever waits for the delivery gets its error
        found = await self._generators.score(expected.rows, self._probes)
        if found is None or any(row.version != expected.version for row in found.scored):
            self._until_next = 0
            return
        self._probes += 1
        self._judge(expected, found)

    def _judge(self, expected: LearnerScores, found: EngineScores) -> None:
        gaps = [np.abs(row.logprobs - own) for row, own in zip(found.scored, expected.logprobs, strict=True)]
        gaps = [np.nan_to_num(gap, nan=np.inf) for gap in gaps]  # not a number is no small difference
        everything = np.concatenate([*gaps, np.zeros(0)])
        if not everything.size:
            return
        mean, worst = float(everything.mean()), float(everything.max())
        self._readings = [Reading(metrics.PROBE_MEAN, mean), Reading(metrics.PROBE_WORST, worst)]
        engine = self._engine_dtypes[found.pool]
        sides = GapSides(learner=self._learner_dtype, engines=frozenset({engine}), routes=expected.routed)
        if mean > sides.rounding:
            row = next(number for number, gap in enumerate(gaps) if gap.max(initial=0.0) == worst)
            place = int(gaps[row].argmax())
            token, theirs, ours = expected.rows[row][place + 1], found.scored[row].logprobs[place], expected.logprobs[row][place]
            raise WeightMismatch(
                f"{found.worker} ({engine}) and the learner ({self._learner_dtype}) compute different log-probabilities with "
                f"version {expected.version}: they differ by {mean:.3g} in the mean of {everything.size} tokens, and rounding "
                f"explains at most {sides.rounding:g}. Worst is token {token} at place {place + 1} of row {row}: {theirs:.4g} by "
                f"the engine, {ours:.4g} by the learner. Both have the same bits of all weights. Likely cause: "
                f"{likely_cause(_evidence(expected, found), sides)}. Settings of attention, rotary positions or experts in "
                "config.json or generators.engine, and kernels, may differ too; set generators.dtype=float32 and "
                "learner.dtype=float32 to take rounding out, or weights.probe_every=null to train all the same"
            )


def _evidence(expected: LearnerScores, found: EngineScores) -> GapEvidence:
    """What a probe tells: of given tokens by one version, so that neither staleness nor what stands between turns matters."""
    sums = GapSums()
    for row, own in zip(found.scored, expected.logprobs, strict=True):
        engine, learner = row.logprobs.astype(np.float64), own.astype(np.float64)
        sums.add(engine, learner, np.zeros(len(own), np.int64), np.zeros(len(own), bool), np.zeros(len(own), bool))
    return sums.evidence()
