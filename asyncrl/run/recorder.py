"""Passes what a run measures to the live view, to MLflow and to the totals of the summary."""

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from asyncrl.core.buffer_api import BufferApi
from asyncrl.core.ids import PolicyVersion, TaskId
from asyncrl.core.measures.metrics import Reading, combine
from asyncrl.core.measures.pacing import Pacing
from asyncrl.core.measures.time_split import TimeSplit
from asyncrl.core.process.control_groups import usable_cores
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.section import AUTO
from asyncrl.core.recipe.tune import DEPTH
from asyncrl.core.text import listed, pluralize
from asyncrl.generators.evaluation import EvaluationResult
from asyncrl.generators.finished_episodes import FinishedEpisodes
from asyncrl.learners.metrics import (
    CLIP_FRACTION,
    EFFECTIVE_SAMPLE_SIZE,
    GRAD_NORM,
    MOST_LOAD,
    STALENESS_MAX,
    STALENESS_MEAN,
    TOKENS_COMPUTED,
    TOKENS_MASKED_STALE,
    gap_evidence,
)
from asyncrl.run.host.gpus import describe_visible, usable
from asyncrl.run.measures import metrics
from asyncrl.run.measures.bottleneck import SlowTool, find_bottleneck
from asyncrl.run.measures.episode_metrics import REWARD_PARTS, EpisodeMetrics
from asyncrl.run.measures.events import EvaluationDone, WarningSeen, finite
from asyncrl.run.measures.measure_file import StepMeasure
from asyncrl.run.measures.progress import RunProgress
from asyncrl.run.measures.scores import score
from asyncrl.run.measures.step_readings import MeasuredStep, Moment, TrainedStep, step_readings
from asyncrl.run.measures.summary import PlayedEvaluation
from asyncrl.run.measures.totals import Totals
from asyncrl.run.measures.warnings import RunWarning, StepSigns, WarningSigns
from asyncrl.run.nodes.machine import BusyCores
from asyncrl.run.pool.generator_pool import GeneratorPool
from asyncrl.run.tiny.lessons import untaught
from asyncrl.run.tracking.tracker import Tracker
from asyncrl.run.views.live_view import LiveView

NO_MEMBERS: Mapping[TaskId, str] = MappingProxyType({})
BOTTLENECK_STEPS = 20
"""How many of the last training steps are searched for the bottleneck."""


class RecordedStep(NamedTuple):
    """What is said of a training step to whoever turns the run's knobs.

    Attributes:
        usual: whether it says how fast the run goes on: it was not done again after a resume, and is not near the run's end.
        sample_size, clip_share: effective sample size, and share of clipped tokens, where the learner says them.
    """

    measure: StepMeasure
    usual: bool
    sample_size: float | None
    clip_share: float | None


class Recorder:
    """Records training steps and evaluations to tracker, view and totals. Call :meth:`begin` when all is up and warm.

    It asks generators and buffer for counters, and changes the buffer's pipeline depth.
    """

    def __init__(
        self,
        recipe: Recipe,
        generators: GeneratorPool,
        buffer: BufferApi,
        tracker: Tracker,
        view: LiveView,
        totals: Totals,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool, self._buffer, self._tracker, self._view, self._totals = generators, buffer, tracker, view, totals
        self._recipe, self._clock = recipe, clock
        self._last: Moment
        self._busy_cores: BusyCores
        self._began, self._steps_here = 0.0, 0
        self._skipped_since: set[PolicyVersion] = set()
        self._times: deque[TimeSplit] = deque(maxlen=BOTTLENECK_STEPS)
        self._finished: deque[FinishedEpisodes] = deque(maxlen=BOTTLENECK_STEPS)
        self._pacing: Pacing | None = None
        self._published_before = PolicyVersion(0)
        self.device = next((gpu.name for gpu in describe_visible()), "gpu") if usable() else "cpu"
        self._episode_metrics = EpisodeMetrics(recipe.environment)
        self._warning_signs = WarningSigns(recipe, able=not untaught(recipe))

    async def begin(self) -> None:
        """Start measuring."""
        self._busy_cores = BusyCores()
        self._last = await self._moment()
        self._began, buffer = self._last.at, self._last.buffer
        self._published_before = buffer.version
        tuned = self._recipe.tune is not None and DEPTH in self._recipe.tune.knobs
        if self._recipe.buffer.pipeline_depth == AUTO and not tuned:
            self._pacing = Pacing(buffer.depth, self._recipe.buffer.largest_depth)

    async def _moment(self) -> Moment:
        generators, buffer = await self._pool.statistics(), await self._buffer.statistics()
        return Moment(self._clock(), generators, buffer)

    async def step(self, step: int, done: TrainedStep) -> RecordedStep:
        """Record one training step, and return what is said of it."""
        before, now = self._last, await self._moment()
        self._last = now
        measured, batch, readings = (
            MeasuredStep.between(before, now, done, self._busy_cores.since_last()),
            done.batch,
            done.readings,
        )
        finished = measured.finished
        # A step that is done again after a resume waits for nothing, and near the run's end no more tickets are issued.
        usual = self._published_before < step < self._recipe.steps - now.buffer.depth
        if usual or not (self._times or self._published_before):
            self._times.append(measured.time)
            self._finished.append(finished)
        self._find_bottleneck(now.buffer.depth)
        reward_parts = list(self._episode_metrics.reward_parts(measured.trained))
        values = combine(
            [
                *readings,
                *(
                    Reading(metrics.COMPUTED_RATE, r.value / measured.time.seconds)
                    for r in readings
                    if r.metric == TOKENS_COMPUTED
                ),
                *step_readings(measured, self._pool.training_pools),
                *reward_parts,
                *self._episode_metrics.readings(finished, batch, now.buffer.source_shares),
            ]
        )
        self._totals.step(step, batch, readings, measured.time, now.generators, now.buffer)
        self._tracker.log(step, values)
        measure = _measure(step, measured, values, self.device)
        self._tracker.log_measure(measure)
        for notice in self._episode_metrics.notices():
            self._view.note(notice)
        self._warn(self._warning_signs.step(step, _signs(values, measured, finished)))
        self._tracker.log_trained(step)
        self._view.update(self._progress(step, measured, values, reward_parts), values)
        if usual:
            await self._pace(measured.time.both_wait)
        return RecordedStep(measure, usual, values.get(EFFECTIVE_SAMPLE_SIZE.name), values.get(CLIP_FRACTION.name))

    def _find_bottleneck(self, depth: int) -> None:
        if not self._times:
            return
        sizes = self._recipe.generators.resized(self._pool.sizes)  # `asyncrl scale` may have changed them
        present = msgspec.structs.replace(self._recipe, generators=sizes)
        time, slowest = sum(self._times, TimeSplit()), SlowTool.of(self._finished)
        self._totals.bottleneck = find_bottleneck(time, present, depth, len(self._times), slowest)

    def _warn(self, warnings: Iterable[RunWarning]) -> None:
        """Show the warnings that the run has not shown yet."""
        for warning in warnings:
            if self._totals.warn(warning.key, warning.sentence):
                self._view.note(f"Warning: {warning.sentence}", logging.WARNING)
                self._view.tell(WarningSeen(key=warning.key, sentence=warning.sentence))

    async def _pace(self, both_wait: float) -> None:
        """Change the pipeline depth where the recipe leaves it open and the last steps ask for it."""
        if self._pacing is None or not self._pacing.step(both_wait):
            return
        await self._buffer.pace(self._pacing.depth)
        self._view.note(f"buffer.pipeline_depth is {self._pacing.depth} from here on: {self._pacing.reason}")

    def evaluation(
        self, version: PolicyVersion, results: Sequence[EvaluationResult], members: Mapping[TaskId, str] = NO_MEMBERS
    ) -> None:
        """Record one evaluation.

        Args:
            version: the policy version that it stands for.
            members: in a mixture of environments, the member that plays each task.
        """
        reward = statistics.fmean(result.reward for result in results)
        turns = statistics.fmean(result.turns for result in results)
        oldest, newest = versions_of(results, version)
        self._totals.evaluation(PlayedEvaluation(version, oldest, newest, reward))
        first = self._totals.first_evaluation
        self._warn(self._warning_signs.evaluation(first, [result.reward for result in results]))
        passed, by_member = self._passed(results), _by_member(results, members)
        values = combine(
            [
                Reading(metrics.EVALUATION_REWARD, reward),
                Reading(metrics.EVALUATION_TURNS, turns),
                Reading(metrics.EVALUATION_OLDEST, oldest),
                Reading(metrics.EVALUATION_NEWEST, newest),
                *(Reading(metrics.evaluation_pass(k), share) for k, share in passed.items()),
                *(Reading(metrics.evaluation_of(member), mean) for member, mean in by_member.items()),
            ]
        )
        self._tracker.log(version, values)
        self._tracker.log_evaluated(version)
        self._view.tell(EvaluationDone(version=version, reward=reward, metrics=finite(values)))
        played = f"versions {oldest} to {newest}" if newest > oldest else f"version {newest}"
        details = "".join(f", pass@{k} {share:.3f}" for k, share in passed.items())
        details += "".join(f", {member} {mean:.3f}" for member, mean in by_member.items())
        tasks = pluralize(len({result.task_id for result in results}), "held-out task")
        several = f", {pluralize(len(results), 'episode')}" if passed else ""
        self._skipped_since.discard(version)
        if self._skipped_since:
            details += f"; versions {listed(sorted(self._skipped_since))} were due since the last one, and are left out"
            self._skipped_since.clear()
        self._view.note(f"{played}: evaluation reward {reward:.3f} over {tasks}{several}{details}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record metrics of somebody else's, who follows the run."""
        self._tracker.log(step, finite(values))

    def skip_evaluation(self, version: PolicyVersion) -> None:
        """Record that an evaluation which was due is left out; the line of the next evaluation names it."""
        skipped = self._totals.skip_evaluation(version)
        self._skipped_since.add(version)
        self._tracker.log(version, combine([Reading(metrics.EVALUATION_SKIPPED, skipped)]))

    def resumed(self, reached: PolicyVersion) -> None:
        """Record that evaluations due up to version ``reached`` are left out whose end the run before this one did not see."""
        lost = self._totals.lost_evaluations(self._recipe.evaluation.every, min(reached, PolicyVersion(self._recipe.steps - 1)))
        for version in lost:
            self.skip_evaluation(version)

    def _passed(self, results: Sequence[EvaluationResult]) -> dict[int, float]:
        """pass@k by k, if tasks have several episodes."""
        evaluation = self._recipe.evaluation
        samples = evaluation.samples or 1
        if samples == 1:
            return {}
        rewards: dict[TaskId, list[float]] = {}
        for result in results:
            rewards.setdefault(result.task_id, []).append(result.reward)
        scores = score(list(rewards.values()), samples, evaluation.passing_reward)
        return {k: estimate.value for k, estimate in scores.passed.items()}

    def _progress(
        self, step: int, measured: MeasuredStep, values: Mapping[str, float], reward_parts: Sequence[Reading]
    ) -> RunProgress:
        self._steps_here += 1
        buffer = measured.now.buffer
        return RunProgress(
            step=step,
            steps=self._recipe.steps,
            version=buffer.version,
            reward=values[metrics.REWARD.name],
            reward_parts={each.metric.name.removeprefix(REWARD_PARTS): each.value for each in reward_parts},
            time=measured.time,
            sampled_tokens=sum(count for row in measured.trained for _, count in row.sampled),
            staleness_mean=values.get(STALENESS_MEAN.name, 0.0),
            staleness_max=values.get(STALENESS_MAX.name, 0.0),
            staleness_bound=self._recipe.buffer.max_staleness,
            running=buffer.ledger.running,
            committed=buffer.ledger.committed,
            delivery_s=measured.delivery_s or 0.0,
            pause_s=values[metrics.PUBLISH_PAUSE.name],
            pipeline_depth=buffer.depth,
            bottleneck=self._totals.bottleneck,
            eta_s=(self._clock() - self._began) / self._steps_here * (self._recipe.steps - step),
            evaluation=self._totals.last_evaluation,
        )


def versions_of(results: Sequence[EvaluationResult], version: PolicyVersion) -> tuple[PolicyVersion, PolicyVersion]:
    """Return the oldest and the newest policy version that sampled episodes of an evaluation, which was to be of ``version``."""
    oldest = min((result.oldest for result in results if result.oldest is not None), default=version)
    return oldest, max((result.newest for result in results if result.newest is not None), default=version)


def _signs(values: Mapping[str, float], measured: MeasuredStep, finished: FinishedEpisodes) -> StepSigns:
    return StepSigns(
        reward=values[metrics.REWARD.name],
        zero_variance=values[metrics.ZERO_VARIANCE.name],
        grad_norm=values.get(GRAD_NORM.name),
        sample_size=values.get(EFFECTIVE_SAMPLE_SIZE.name),
        gap=gap_evidence(values),
        routed=MOST_LOAD.name in values,
        filtered=measured.filtered,
        complete=measured.complete,
        finished=finished,
    )


def _measure(step: int, measured: MeasuredStep, values: Mapping[str, float], device: str) -> StepMeasure:
    return StepMeasure(
        step=step,
        time=measured.time,
        rows=len(measured.batch.rows),
        computed_tokens=int(values.get(TOKENS_COMPUTED.name, 0)),
        delivery_s=measured.delivery_s,
        pause_s=values[metrics.PUBLISH_PAUSE.name],
        staleness_mean=values.get(STALENESS_MEAN.name, 0.0),
        staleness_max=int(values.get(STALENESS_MAX.name, 0)),
        masked=int(values.get(TOKENS_MASKED_STALE.name, 0)),
        filtered=measured.filtered,
        complete=measured.complete,
        depth=measured.now.buffer.depth,
        engines=len(measured.now.generators),
        cores=usable_cores(),
        device=device,
    )


def _by_member(results: Sequence[EvaluationResult], members: Mapping[TaskId, str]) -> dict[str, float]:
    """Return the mean reward of the tasks of each member; nothing where there is no mixture."""
    rewards: dict[str, list[float]] = {}
    for result in results:
        if member := members.get(result.task_id, ""):
            rewards.setdefault(member, []).append(result.reward)
    return {member: statistics.fmean(own) for member, own in sorted(rewards.items())}
