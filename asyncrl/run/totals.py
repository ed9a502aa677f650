"""Running totals of a run, complete at every moment, so that a run that is cut short still has a true summary."""

import time
from collections.abc import Sequence

from asyncrl.core.batch import Batch
from asyncrl.core.metrics import Reading
from buffers.replay_buffer import BufferStatistics
from generators.worker import GeneratorStatistics


class Totals:
    """What the summary is made of. Only tokens that entered a loss count towards staleness."""

    def __init__(self) -> None:
        self.launched = time.monotonic()
        self.began = self.launched
        """When training began: everything up, warm, and version 0 evaluated."""
        self.steps = 0
        self.trajectories = 0
        self.tokens_trained = 0
        self.learner_busy = 0.0
        self.versions_published = 0
        """Versions every engine acknowledged, version 0 not counted."""
        self.evaluations: list[float] = []
        self.staleness_max = 0
        self._staleness_sum = 0.0
        self._staleness_tokens = 0.0
        self._step_ended = self.began
        self._generators_before: Sequence[GeneratorStatistics] = ()
        self.generators: Sequence[GeneratorStatistics] = ()
        self.buffer: BufferStatistics | None = None
        self._tokens_at_end = 0

    def begin(self, now: float, generators: Sequence[GeneratorStatistics]) -> None:
        """Training begins."""
        self.began = self._step_ended = now
        self._generators_before = self.generators = generators

    def step(
        self,
        step: int,
        batch: Batch,
        readings: Sequence[Reading],
        learner_busy: float,
        now: float,
        generators: Sequence[GeneratorStatistics],
        buffer: BufferStatistics,
    ) -> None:
        """One optimizer step is done."""
        self.steps = step
        self.trajectories += len(batch.rows)
        self.tokens_trained += sum(row.loss_tokens for row in batch.rows)
        self.learner_busy += learner_busy
        self.generators, self.buffer, self._step_ended = generators, buffer, now
        for reading in readings:
            if reading.metric.name == "staleness/mean":
                self._staleness_sum += reading.value * reading.weight
                self._staleness_tokens += reading.weight
            elif reading.metric.name == "staleness/max":
                self.staleness_max = max(self.staleness_max, int(reading.value))

    def ended(self, generators: Sequence[GeneratorStatistics], buffer: BufferStatistics) -> None:
        """The run is over: what was generated after the last step counts as well, but not into rates and idle shares."""
        self._tokens_at_end, self.buffer = sum(g.tokens_generated for g in generators), buffer

    def evaluation(self, reward: float) -> None:
        """One evaluation is done."""
        self.evaluations.append(reward)

    def published(self) -> None:
        """One version was acknowledged by every engine."""
        self.versions_published += 1

    @property
    def trajectories_per_s(self) -> float:
        """Episodes trained a second while training."""
        return self.trajectories / self.training_seconds if self.training_seconds else 0.0

    @property
    def training_seconds(self) -> float:
        """From the beginning of training to the end of the last step."""
        return self._step_ended - self.began

    @property
    def staleness_mean(self) -> float:
        """Mean over all tokens trained."""
        return self._staleness_sum / self._staleness_tokens if self._staleness_tokens else 0.0

    @property
    def tokens_generated(self) -> int:
        """Tokens sampled for training and evaluation by all engines, warm-up left out."""
        return max(self._tokens_at_end, self._tokens_at_last_step)

    @property
    def _tokens_at_last_step(self) -> int:
        return sum(g.tokens_generated for g in self.generators)

    @property
    def completion_tokens_per_s(self) -> float:
        """Tokens sampled a second while training."""
        sampled = self._tokens_at_last_step - sum(g.tokens_generated for g in self._generators_before)
        return sampled / self.training_seconds if self.training_seconds else 0.0

    @property
    def idle_generators(self) -> float:
        """Share of engine time while training in which engines had nothing running or were paused."""
        return idle_share(self._generators_before, self.generators)

    @property
    def idle_learner(self) -> float:
        """Share of time while training in which the learner neither trained nor wrote weights."""
        return max(0.0, 1 - self.learner_busy / self.training_seconds) if self.training_seconds else 0.0


def idle_share(before: Sequence[GeneratorStatistics], after: Sequence[GeneratorStatistics]) -> float:
    """Share of engine time between two readings in which engines had nothing running or were paused."""
    wall = sum(a.wall_seconds - b.wall_seconds for a, b in zip(after, before, strict=True))
    idle = sum(a.idle_seconds - b.idle_seconds for a, b in zip(after, before, strict=True))
    return idle / wall if wall > 0 else 0.0
