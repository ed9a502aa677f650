"""Running totals of a run, complete at every moment, so that a run that is cut short still has a true summary.

They are saved with each checkpoint. A resumed run goes on from there, so that a step that is done again is counted once.
"""

import statistics
import time
from collections.abc import Sequence
from math import ceil

import msgspec

from asyncrl.core.batch import Batch
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.measures.buffer_statistics import BufferStatistics
from asyncrl.core.measures.metrics import Reading
from asyncrl.core.measures.time_split import TimeSplit
from asyncrl.core.plug_ins.error_counts import CountedError, merged
from asyncrl.core.recipe.buffer import BufferConfig
from asyncrl.generators.worker import GeneratorStatistics
from asyncrl.learners.metrics import STALENESS_MAX, STALENESS_MEAN
from asyncrl.run.measures.bottleneck import Bottleneck
from asyncrl.run.measures.summary import (
    REWARD_STEPS,
    EvaluationEnds,
    PlayedEvaluation,
    RewardEnds,
    StalenessTotals,
    Status,
    Summary,
    TokenTotals,
)

FORMAT = 3
"""The format of saved totals. It was 1 while an evaluation was its mean reward alone, and 2 while each kind of time was a number
of its own."""


class SavedTotals(msgspec.Struct, kw_only=True):
    """The totals that are saved with a checkpoint.

    Attributes:
        steps, tokens_trained: training steps done; tokens that entered their losses.
        wall: seconds since the run was launched, without the time between its end and a resume.
        time: where the time of the training steps went, and what was made in it.
        repeated: the part of it that trained episodes again from the journal after a resume: nothing had to be generated, so it
            says nothing about the run's speed.
        tokens_generated: tokens that all engines sampled, warm-up left out.
        staleness_sum, staleness_tokens: their quotient is the mean staleness of trained tokens.
        staleness_max: the largest staleness of a trained token.
        first_rewards, last_rewards: mean reward of the batches of the first and the last :data:`REWARD_STEPS` training steps.
        evaluations: what was evaluated, in order.
        skipped_evaluations: versions whose evaluation was due, and that none of ``evaluations`` stands for.
        warnings: the sentence of each warning, by its key.
        errors: errors of the environments' own code, by place.
        format: the format of a file of totals; those that do not say it have format 1.
    """

    steps: int = 0
    tokens_trained: int = 0
    wall: float = 0.0
    time: TimeSplit = TimeSplit()
    repeated: TimeSplit = TimeSplit()
    tokens_generated: int = 0
    staleness_sum: float = 0.0
    staleness_tokens: float = 0.0
    staleness_max: int = 0
    first_rewards: list[float] = []
    last_rewards: list[float] = []
    evaluations: list[PlayedEvaluation] = []
    skipped_evaluations: list[PolicyVersion] = []
    warnings: dict[str, str] = {}
    errors: tuple[CountedError, ...] = ()
    format: int = FORMAT

    @property
    def trajectories_per_s(self) -> float:
        """Episodes trained per second while training, without training steps that were done again from the journal."""
        return (self.time - self.repeated).trajectories_per_s

    @property
    def staleness_mean(self) -> float:
        """Mean staleness of all trained tokens, in policy versions."""
        return self.staleness_sum / self.staleness_tokens if self.staleness_tokens else 0.0


class Totals:
    """Collects the figures that the summary is made of. Only tokens that entered a loss count towards staleness."""

    def __init__(self) -> None:
        self._launched = time.monotonic()
        self._counts, self._base = SavedTotals(), SavedTotals()
        self._tokens_generated = self._published_before = 0
        self._errors: tuple[CountedError, ...] = ()
        self.versions_published = 0
        """How many versions every engine acknowledged, without version 0."""
        self.buffer: BufferStatistics | None = None
        self.bottleneck: Bottleneck | None = None

    def resume(self, saved: SavedTotals, published: PolicyVersion) -> None:
        """Go on from ``saved`` totals; engines had acknowledged every version up to ``published``."""
        self._base = saved
        self._counts = msgspec.structs.replace(saved)
        self.versions_published = self._published_before = published

    def step(
        self,
        step: int,
        batch: Batch,
        readings: Sequence[Reading],
        time: TimeSplit,
        generators: Sequence[GeneratorStatistics],
        buffer: BufferStatistics,
    ) -> None:
        """Count one training step."""
        counts = self._counts
        counts.steps = step
        counts.time += time
        reward = statistics.fmean(episode.reward for episode in batch.trained)
        counts.first_rewards = [*counts.first_rewards, reward][:REWARD_STEPS]
        counts.last_rewards = [*counts.last_rewards, reward][-REWARD_STEPS:]
        if step <= self._published_before:
            counts.repeated += time
        counts.tokens_trained += sum(row.loss_tokens for row in batch.rows)
        self.counted(generators, buffer)
        for reading in readings:
            if reading.metric == STALENESS_MEAN:
                counts.staleness_sum += reading.value * reading.weight
                counts.staleness_tokens += reading.weight
            elif reading.metric == STALENESS_MAX:
                counts.staleness_max = max(counts.staleness_max, int(reading.value))

    def counted(self, generators: Sequence[GeneratorStatistics], buffer: BufferStatistics) -> None:
        """Note what generators and buffer have counted so far, whether or not a training step has ended."""
        self._tokens_generated, self.buffer = sum(each.tokens_generated for each in generators), buffer
        self._errors = tuple(error for each in generators for error in each.errors)

    def evaluation(self, played: PlayedEvaluation) -> None:
        """Add one evaluation; its version counts as skipped no longer."""
        self._counts.evaluations = [*self._counts.evaluations, played]
        self._counts.skipped_evaluations = [each for each in self._counts.skipped_evaluations if each != played.version]

    def skip_evaluation(self, version: PolicyVersion) -> int:
        """Note that an evaluation which was due is left out, unless one stands for its version; returns how many are left out."""
        if version not in {each.version for each in self._counts.evaluations} | set(self._counts.skipped_evaluations):
            self._counts.skipped_evaluations = [*self._counts.skipped_evaluations, version]
        return len(self._counts.skipped_evaluations)

    def lost_evaluations(self, every: int, reached: PolicyVersion) -> list[PolicyVersion]:
        """Return the versions up to ``reached`` whose evaluation was due and had not ended when the run before a resume ended.

        A run evaluates version 0 first, so if there is no evaluation, nothing is known of any.
        """
        if not self._counts.evaluations:
            return []
        known = max([each.version for each in self._counts.evaluations] + self._counts.skipped_evaluations)
        return [PolicyVersion(version) for version in range(every, reached + 1, every) if version > known]

    @property
    def first_evaluation(self) -> float:
        """Mean reward of the run's first evaluation, which must have been added."""
        return self._counts.evaluations[0].reward

    @property
    def last_evaluation(self) -> PlayedEvaluation | None:
        """The run's last evaluation, which may have been before a resume; None before the first."""
        return next(reversed(self._counts.evaluations), None)

    def warn(self, key: str, sentence: str) -> bool:
        """Add a warning, and return whether it is new: whether none with its ``key`` was added before."""
        if key in self._counts.warnings:
            return False
        self._counts.warnings = {**self._counts.warnings, key: sentence}
        return True

    def published(self) -> None:
        """Count one version that every engine has acknowledged."""
        self.versions_published += 1

    @property
    def seconds(self) -> float:
        """Seconds since the run was launched or resumed."""
        return time.monotonic() - self._launched

    def now(self) -> SavedTotals:
        """All totals as they are now."""
        return msgspec.structs.replace(
            self._counts,
            wall=self._base.wall + self.seconds,
            errors=merged(self._base.errors + self._errors),
            tokens_generated=self._base.tokens_generated + self._tokens_generated,
        )


def summarize(totals: Totals, status: Status, reason: str, limits: BufferConfig) -> Summary:
    """Summarise a run that ended with this status and reason; ``limits`` is section ``buffer`` of its recipe."""
    now = totals.now()
    # A run that was killed did not save how much it sampled since the last checkpoint; but what it trained, it sampled.
    generated = max(now.tokens_generated, ceil(now.tokens_trained / limits.max_reuse))
    summary = Summary(
        status=status,
        reason=reason,
        steps=now.steps,
        wall_s=now.wall,
        training_s=now.time.seconds,
        reward=RewardEnds(statistics.fmean(now.first_rewards), statistics.fmean(now.last_rewards))
        if now.first_rewards
        else RewardEnds(),
        evaluation=EvaluationEnds.of(now.evaluations, now.skipped_evaluations),
        staleness=StalenessTotals(now.staleness_mean, now.staleness_max, limits.max_staleness),
        tokens=TokenTotals(generated, now.tokens_trained),
        trajectories_per_s=now.trajectories_per_s,
        idle=now.time.idle,
        bottleneck=totals.bottleneck,
        versions_published=totals.versions_published,
        warnings=tuple(now.warnings.values()),
        errors=now.errors,
    )
    if totals.buffer is None:
        return summary
    too_long = {f"tasks.train ({name})": tasks for name, tasks in totals.buffer.too_long.items()}
    return msgspec.structs.replace(summary, ledger=totals.buffer.ledger, too_long=too_long)
