"""Passes what a run measures to the live view, to MLflow and to the totals of the summary."""

import logging
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from asyncrl.core.batch import Batch
from asyncrl.core.buffer_api import BufferApi
from asyncrl.core.ids import PolicyVersion, TaskId
from asyncrl.core.measures.buffer_statistics import BufferStatistics, LedgerCounts
from asyncrl.core.measures.metrics import Reading, combine
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.section import AUTO
from asyncrl.core.spread import has_spread
from asyncrl.core.text import counted, listed
from asyncrl.run.measures import metrics
from asyncrl.run.measures.bottleneck import SlowTool, find_bottleneck
from asyncrl.run.measures.episode_metrics import EpisodeMetrics, finished_between
from asyncrl.run.measures.pacing import Pacing
from asyncrl.run.measures.pool_readings import pool_readings
from asyncrl.run.measures.progress import RunProgress
from asyncrl.run.measures.scores import score
from asyncrl.run.measures.summary import NO_GROUPS, PlayedEvaluation
from asyncrl.run.measures.time_shares import generator_readings, learner_readings
from asyncrl.run.measures.time_split import Shares, StepTimes, aligned, grown
from asyncrl.run.measures.totals import Totals
from asyncrl.run.measures.warnings import RunWarning, StepSigns, WarningSigns
from asyncrl.run.nodes.machine import busy_cores
from asyncrl.run.pool.generator_pool import GeneratorPool
from asyncrl.run.publisher import PublishTimes
from asyncrl.run.tracking.tracker import Tracker
from asyncrl.run.views.live_view import LiveView
from generators.evaluation import EvaluationResult
from generators.finished_episodes import FinishedEpisodes
from generators.worker import GeneratorStatistics
from learners.metrics import EFFECTIVE_SAMPLE_SIZE, GRAD_NORM, TOKENS_COMPUTED

NO_MEMBERS: Mapping[TaskId, str] = MappingProxyType({})
BOTTLENECK_STEPS = 20
"""How many of the last training steps are searched for the bottleneck."""


class Recorder:
    """Records training steps and evaluations to tracker, view and totals. Call :meth:`begin` when all is up and warm.

    It asks generators and buffer for counters, and tells the buffer when the pipeline depth is to change.
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
        self._began = self._step_ended = 0.0
        self._steps_here = 0
        self._generators: list[GeneratorStatistics] = []
        self._evaluation: PlayedEvaluation | None = None
        self._skipped_since: set[PolicyVersion] = set()
        self._shares: deque[Shares] = deque(maxlen=BOTTLENECK_STEPS)
        self._finished: deque[FinishedEpisodes] = deque(maxlen=BOTTLENECK_STEPS)
        self._pacing: Pacing | None = None
        self._published_before = PolicyVersion(0)
        self._ledger = NO_GROUPS
        self._episode_metrics, self._warning_signs = EpisodeMetrics(recipe.environment), WarningSigns(recipe)

    async def begin(self) -> None:
        """Start measuring."""
        self._generators, buffer = await self._pool.statistics(), await self._buffer.statistics()
        self._ledger = buffer.ledger
        self._published_before = buffer.version
        if self._recipe.buffer.pipeline_depth == AUTO:
            self._pacing = Pacing(buffer.depth, self._recipe.buffer.largest_depth)
        busy_cores()  # the first call begins the measurement
        self._began = self._step_ended = self._clock()
        self._totals.begin(self._step_ended, self._generators)

    async def step(
        self, step: int, batch: Batch, readings: Sequence[Reading], times: StepTimes, publish: PublishTimes | None
    ) -> None:
        """Record one training step.

        Args:
            times: what the learner's side spent it on.
            publish: times of the last publication that was delivered; None if there was none since the step before.
        """
        generators, buffer = await self._pool.statistics(), await self._buffer.statistics()
        now = self._clock()
        seconds, self._step_ended = now - self._step_ended, now
        before, self._generators = aligned(self._generators, generators), generators
        shares = Shares.of_step(times, seconds, before, generators, busy_cores())
        # A step that is done again after a resume waits for nothing, and near the run's end no more tickets are issued.
        usual = self._published_before < step < self._recipe.steps - buffer.depth
        finished = finished_between(before, generators)
        if usual or not (self._shares or self._published_before):
            self._shares.append(shares)
            self._finished.append(finished)
        complete, filtered = self._filters(buffer.ledger)
        slowest = SlowTool.of(self._finished)
        if self._shares:
            mean = Shares.mean(self._shares)
            now_playing = self._recipe.generators.of_sizes(self._pool.sizes)  # `asyncrl scale` may have changed them
            present = msgspec.structs.replace(self._recipe, generators=now_playing)
            self._totals.bottleneck = find_bottleneck(mean, present, buffer.depth, len(self._shares), slowest)
        trained = batch.trained().rows
        tokens = sum(row.length for row in trained)
        reward_parts = list(self._episode_metrics.reward_parts(trained))
        run_readings = [
            *batch_readings(batch),
            *reward_parts,
            *_buffer_readings(buffer),
            Reading(metrics.GENERATED_RATE, grown(before, generators, "tokens_generated") / seconds),
            *pool_readings(self._pool.training_pools, before, generators, seconds),
            Reading(metrics.FINISHED_RATE, grown(before, generators, "finished_episodes") / seconds),
            Reading(metrics.TRAINED_RATE, tokens / seconds),
            *(Reading(metrics.COMPUTED_RATE, each.value / seconds) for each in readings if each.metric == TOKENS_COMPUTED),
            Reading(metrics.TRAJECTORY_RATE, len(trained) / seconds),
            Reading(metrics.LEARNER_IDLE, max(0.0, 1 - (times.training + times.writing) / seconds)),
            Reading(metrics.GENERATORS_IDLE, shares.idle),
            Reading(metrics.TOOL_TIME, shares.tools),
            Reading(metrics.HELD_BACK, shares.held_back),
            Reading(metrics.CORES_BUSY, shares.cores),
            *_cpu_readings(before, generators),
            Reading(metrics.EPISODE_LIMIT, sum(g.episode_limit for g in generators)),
            Reading(metrics.PIPELINE_DEPTH, buffer.depth),
            *(Reading(metrics.VERSIONS_SAMPLED, len(g.tokens_by_version)) for g in generators),
            *_scoring_readings(before, generators),
            *self._episode_metrics.readings(finished, batch, buffer.source_shares),
            *_filter_readings(complete, filtered),
            *learner_readings(times, seconds),
            *generator_readings(before, generators, seconds),
            Reading(metrics.TOOL_OUTPUT_CUT, grown(before, generators, "tool_output_cut")),
            Reading(metrics.PUBLISH_PAUSE, max(g.last_pause_seconds for g in generators)),
        ]
        if publish is not None:
            run_readings.append(Reading(metrics.PUBLISH_WRITE, publish.write_seconds))
            run_readings.append(Reading(metrics.PUBLISH_INSTALL, publish.install_seconds))
        values = combine([*readings, *run_readings])
        self._totals.step(step, batch, readings, times.training + times.writing, now, generators, buffer)
        self._tracker.log(step, values)
        for notice in self._episode_metrics.notices():
            self._view.note(notice)
        self._warn(self._warning_signs.step(step, _signs(values, complete, filtered, finished)))
        self._tracker.log_trained(step)
        parts = {reading.metric.name.removeprefix("reward/"): reading.value for reading in reward_parts}
        sampled = sum(count for row in trained for _, count in row.sampled)
        self._view.update(self._progress(step, buffer.version, values, shares, sampled, parts))
        if usual:
            await self._pace(shares.both_wait)

    def _filters(self, ledger: LedgerCounts) -> tuple[int, int]:
        """How many groups were complete since the step before, and how many of them filters left out."""
        before, self._ledger = self._ledger, ledger
        filtered = ledger.left_out_by_filters - before.left_out_by_filters
        kept = ledger.committed + ledger.taken + ledger.trained - before.committed - before.taken - before.trained
        return max(0, filtered + kept), max(0, filtered)

    def _warn(self, warnings: Iterable[RunWarning]) -> None:
        """Show the warnings that the run has not shown yet."""
        for warning in warnings:
            if self._totals.warn(warning.key, warning.sentence):
                self._view.note(f"Warning: {warning.sentence}", logging.WARNING)

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
            version: what it stands for.
            members: in a mixture of environments, the member that plays each task.
        """
        reward = statistics.fmean(result.reward for result in results)
        turns = statistics.fmean(result.turns for result in results)
        oldest, newest = versions_of(results, version)
        self._evaluation = PlayedEvaluation(version, oldest, newest, reward)
        self._totals.evaluation(self._evaluation)
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
        played = f"versions {oldest} to {newest}" if newest > oldest else f"version {newest}"
        told = "".join(f", pass@{k} {share:.3f}" for k, share in passed.items())
        told += "".join(f", {member} {mean:.3f}" for member, mean in by_member.items())
        tasks = counted(len({result.task_id for result in results}), "held-out task")
        several = f", {counted(len(results), 'episode')}" if passed else ""
        self._skipped_since.discard(version)
        if self._skipped_since:
            told += f"; versions {listed(sorted(self._skipped_since))} were due since the last one, and are left out"
            self._skipped_since.clear()
        self._view.note(f"{played}: evaluation reward {reward:.3f} over {tasks}{several}{told}")

    def skip_evaluation(self, version: PolicyVersion) -> None:
        """Record that an evaluation which was due is left out; the line of the next evaluation tells of it."""
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
        self,
        step: int,
        version: PolicyVersion,
        values: dict[str, float],
        shares: Shares,
        sampled: int,
        reward_parts: dict[str, float],
    ) -> RunProgress:
        self._steps_here += 1
        elapsed = self._clock() - self._began
        return RunProgress(
            step=step,
            steps=self._recipe.steps,
            version=version,
            reward=values[metrics.REWARD.name],
            generator_tokens_per_s=values[metrics.GENERATED_RATE.name],
            learner_tokens_per_s=values[metrics.TRAINED_RATE.name],
            trajectories_per_s=values[metrics.TRAJECTORY_RATE.name],
            sampled_tokens=sampled,
            reward_parts=reward_parts,
            staleness_mean=values.get("staleness/mean", 0.0),
            staleness_max=values.get("staleness/max", 0.0),
            staleness_bound=self._recipe.buffer.max_staleness,
            running=int(values[metrics.RUNNING.name]),
            committed=int(values[metrics.COMMITTED.name]),
            publish_seconds=values.get(metrics.PUBLISH_INSTALL.name, 0.0),
            pause_seconds=values[metrics.PUBLISH_PAUSE.name],
            idle_generators=values[metrics.GENERATORS_IDLE.name],
            idle_learner=values[metrics.LEARNER_IDLE.name],
            evaluation=self._evaluation,
            eta_s=elapsed / self._steps_here * (self._recipe.steps - step),
            shares=shares,
            pipeline_depth=int(values[metrics.PIPELINE_DEPTH.name]),
            bottleneck=self._totals.bottleneck,
        )


def versions_of(results: Sequence[EvaluationResult], version: PolicyVersion) -> tuple[PolicyVersion, PolicyVersion]:
    """Return the oldest and the newest policy version that sampled episodes of an evaluation, which was to be of ``version``."""
    oldest = min((result.oldest for result in results if result.oldest is not None), default=version)
    return oldest, max((result.newest for result in results if result.newest is not None), default=version)


def batch_readings(batch: Batch) -> list[Reading]:
    """Make the readings of rewards, lengths and stop reasons of a batch's rows."""
    rewards: dict[int, list[float]] = {}
    for row in batch.rows:
        rewards.setdefault(row.group_id, []).append(row.reward)
    trained, greedy = batch.trained().rows, [row.reward for row in batch.rows if row.greedy]
    stopped = Counter(row.stop_reason for row in trained)
    return [
        Reading(metrics.REWARD, statistics.fmean(row.reward for row in trained), len(trained)),
        *([Reading(metrics.GREEDY_REWARD, statistics.fmean(greedy), len(greedy))] if greedy else []),
        *(Reading(metric, stopped[reason] / len(trained), len(trained)) for reason, metric in metrics.STOPPED.items()),
        Reading(metrics.EPISODE_TOKENS, statistics.fmean(row.length for row in trained), len(trained)),
        Reading(metrics.ZERO_VARIANCE, statistics.fmean(not has_spread(several) for several in rewards.values()), len(rewards)),
    ]


def _scoring_readings(before: Sequence[GeneratorStatistics], after: Sequence[GeneratorStatistics]) -> list[Reading]:
    uses = [now.scoring - then.scoring for then, now in zip(before, after, strict=True)]
    of_score = [Reading(metrics.MODEL_SCORE, use.total / use.episodes, use.episodes) for use in uses if use.episodes]
    return of_score + [Reading(metrics.MODEL_SECONDS, use.seconds / use.episodes, use.episodes) for use in uses if use.episodes]


def _cpu_readings(before: Sequence[GeneratorStatistics], after: Sequence[GeneratorStatistics]) -> list[Reading]:
    thousands = grown(before, after, "tokens_generated") / 1000
    if thousands == 0:
        return []
    return [
        Reading(metrics.ENGINE_CPU, grown(before, after, "cpu_seconds") / thousands, thousands),
        Reading(metrics.FRONT_END_CPU, grown(before, after, "front_end_cpu_seconds") / thousands, thousands),
    ]


def _signs(values: Mapping[str, float], complete: int, filtered: int, finished: FinishedEpisodes) -> StepSigns:
    return StepSigns(
        reward=values[metrics.REWARD.name],
        zero_variance=values[metrics.ZERO_VARIANCE.name],
        grad_norm=values.get(GRAD_NORM.name),
        sample_size=values.get(EFFECTIVE_SAMPLE_SIZE.name),
        filtered=filtered,
        complete=complete,
        finished=finished,
    )


def _filter_readings(complete: int, filtered: int) -> list[Reading]:
    return [Reading(metrics.FILTERED, filtered / complete, complete)] if complete else []


def _buffer_readings(buffer: BufferStatistics) -> list[Reading]:
    return [
        Reading(metrics.RUNNING, buffer.ledger.running),
        Reading(metrics.COMMITTED, buffer.ledger.committed),
        Reading(metrics.PAYLOAD, buffer.payload_bytes),
    ]


def _by_member(results: Sequence[EvaluationResult], members: Mapping[TaskId, str]) -> dict[str, float]:
    """Return the mean reward of the tasks of each member; nothing where there is no mixture."""
    rewards: dict[str, list[float]] = {}
    for result in results:
        if member := members.get(result.task_id, ""):
            rewards.setdefault(member, []).append(result.reward)
    return {member: statistics.fmean(own) for member, own in sorted(rewards.items())}
