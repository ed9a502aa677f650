"""Makes the readings of a training step, from the counters of generators and buffer before and after it."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from asyncrl.core.batch import Batch, BatchEpisode
from asyncrl.core.episode_records import compared_rewards
from asyncrl.core.measures.buffer_statistics import BufferStatistics
from asyncrl.core.measures.metrics import Reading
from asyncrl.core.measures.time_split import GeneratorTime, LearnerTime, TimeSplit, idle_in_pool
from asyncrl.core.reward_spread import has_spread
from asyncrl.generators.finished_episodes import FinishedEpisodes
from asyncrl.generators.scoring import ScoringUse, TeachingUse
from asyncrl.generators.worker import GeneratorStatistics
from asyncrl.run.measures import metrics


class Moment(msgspec.Struct, frozen=True):
    """The counters of generators and buffer at one moment.

    Attributes:
        at: seconds of the monotonic clock.
        generators: the counters of each generator slot. Later moments have further slots at the end, and none less.
    """

    at: float
    generators: Sequence[GeneratorStatistics]
    buffer: BufferStatistics

    @property
    def time(self) -> GeneratorTime:
        """Where the time of all generators went since they began."""
        return sum((each.time for each in self.generators), GeneratorTime())

    @property
    def finished(self) -> FinishedEpisodes:
        """The counters of finished episodes, of all generators together."""
        return sum((each.finished for each in self.generators), FinishedEpisodes())


class TrainedStep(msgspec.Struct, frozen=True):
    """A training step that the learner has done.

    Attributes:
        readings: readings of all ranks, and of a probe if there was one.
        time: what the learner's side spent the step on.
        delivery_s: how long the last publication took that was delivered; None if there was none since the step before.
    """

    batch: Batch
    readings: Sequence[Reading]
    time: LearnerTime
    delivery_s: float | None


class MeasuredStep(msgspec.Struct, frozen=True):
    """A training step, with the counters before and after it.

    Attributes:
        time: where its time went.
        delivery_s: seconds until every engine had the version before; None if none was delivered.
    """

    batch: Batch
    before: Moment
    now: Moment
    time: TimeSplit
    delivery_s: float | None

    @classmethod
    def between(cls, before: Moment, now: Moment, done: TrainedStep, cores: float) -> "MeasuredStep":
        """Measure the step between two moments; ``cores`` is the share of the cores that was busy."""
        seconds, trained = now.at - before.at, done.batch.trained
        time = TimeSplit(
            seconds=seconds,
            learner=done.time,
            generators=now.time - before.time,
            slots=seconds * len(now.generators),
            cores=seconds * cores,
            trajectories=len(trained),
            trained_tokens=sum(row.length for row in done.batch.rows),
            generated_tokens=_grown(before, now, "tokens_generated"),
        )
        return cls(done.batch, before, now, time, done.delivery_s)

    @property
    def trained(self) -> Sequence[BatchEpisode]:
        """The episodes that were trained."""
        return self.batch.trained

    @property
    def finished(self) -> FinishedEpisodes:
        """The counters of the episodes that finished since the step before."""
        return self.now.finished - self.before.finished

    @property
    def filtered(self) -> int:
        """How many groups filters left out since the step before."""
        return max(0, self.now.buffer.ledger.left_out_by_filters - self.before.buffer.ledger.left_out_by_filters)

    @property
    def complete(self) -> int:
        """How many groups became complete since the step before, those that filters left out included."""
        before, now = self.before.buffer.ledger, self.now.buffer.ledger
        kept = now.committed + now.taken + now.trained - before.committed - before.taken - before.trained
        return max(0, now.left_out_by_filters - before.left_out_by_filters + kept)


def step_readings(step: MeasuredStep, pools: Sequence[str]) -> Iterator[Reading]:
    """Yield the readings of a training step, but for those of the learner and of its episodes.

    Args:
        pools: the pool of each generator slot.
    """
    generators, buffer = step.now.generators, step.now.buffer
    yield from batch_readings(step.batch)
    yield from step.time.readings(step.now.time)
    yield from _generation(step)
    yield from _pools(step, pools)
    yield Reading(metrics.TRAINED_RATE, step.time.trained_per_s)
    yield Reading(metrics.TRAJECTORY_RATE, step.time.trajectories_per_s)
    yield Reading(metrics.CORES_BUSY, step.time.busy_cores)
    yield Reading(metrics.RUNNING, buffer.ledger.running)
    yield Reading(metrics.COMMITTED, buffer.ledger.committed)
    yield Reading(metrics.PAYLOAD, buffer.payload_bytes)
    yield Reading(metrics.PIPELINE_DEPTH, buffer.depth)
    if step.complete:
        yield Reading(metrics.FILTERED, step.filtered / step.complete, step.complete)
    yield Reading(metrics.PUBLISH_PAUSE, max(each.last_pause_seconds for each in generators))
    if step.time.learner.writing:
        yield Reading(metrics.PUBLISH_WRITE, step.time.learner.writing)
    if step.delivery_s is not None:
        yield Reading(metrics.PUBLISH_DELIVERY, step.delivery_s)


def batch_readings(batch: Batch) -> Iterator[Reading]:
    """Yield the readings of rewards, lengths and stop reasons of a batch's episodes."""
    groups: dict[int, list[BatchEpisode]] = {}
    for episode in batch.episodes:
        groups.setdefault(episode.group_id, []).append(episode)
    trained, greedy = batch.trained, [episode.reward for episode in batch.episodes if episode.greedy]
    stopped = Counter(episode.stop_reason for episode in trained)
    yield Reading(metrics.REWARD, statistics.fmean(episode.reward for episode in trained), len(trained))
    if greedy:
        yield Reading(metrics.GREEDY_REWARD, statistics.fmean(greedy), len(greedy))
    for reason, metric in metrics.STOPPED.items():
        yield Reading(metric, stopped[reason] / len(trained), len(trained))
    yield Reading(metrics.EPISODE_TOKENS, statistics.fmean(episode.length for episode in trained), len(trained))
    yield Reading(metrics.ZERO_VARIANCE, statistics.fmean(map(_without_spread, groups.values())), len(groups))


def _without_spread(group: Sequence[BatchEpisode]) -> bool:
    """Whether the rewards by which the episodes of a group are compared are all equal."""
    return not any(has_spread(rewards.values()) for rewards in compared_rewards(group).values())


def _generation(step: MeasuredStep) -> Iterator[Reading]:
    before, now, time = step.before, step.now, step.time
    yield Reading(metrics.GENERATED_RATE, time.generated_per_s)
    yield Reading(metrics.FINISHED_RATE, _grown(before, now, "finished_episodes") / time.seconds)
    yield Reading(metrics.TOOL_TIME, time.tools)
    yield Reading(metrics.HELD_BACK, time.held_back)
    yield Reading(metrics.TOOL_OUTPUT_CUT, _grown(before, now, "tool_output_cut"))
    yield Reading(metrics.EPISODE_LIMIT, sum(each.episode_limit for each in now.generators))
    for each in now.generators:
        yield Reading(metrics.VERSIONS_SAMPLED, len(each.tokens_by_version))
    if thousands := time.generated_tokens / 1000:
        yield Reading(metrics.ENGINE_CPU, time.generators.engine_cpu / thousands, thousands)
        yield Reading(metrics.FRONT_END_CPU, time.generators.front_end_cpu / thousands, thousands)
    scores = _scores(now) - _scores(before)
    if scores.episodes:
        yield Reading(metrics.MODEL_SCORE, scores.total / scores.episodes, scores.episodes)
        yield Reading(metrics.MODEL_SECONDS, scores.seconds / scores.episodes, scores.episodes)
    taught = _taught(now) - _taught(before)
    if taught.episodes:
        yield Reading(metrics.TEACHER_SECONDS, taught.seconds / taught.episodes, taught.episodes)


def _pools(step: MeasuredStep, pools: Sequence[str]) -> Iterator[Reading]:
    """Yield readings of each pool that trains; none if there is only one, because those of all generators say the same."""
    names = sorted(set(pools))
    for name in names if len(names) > 1 else ():
        before, now = (
            msgspec.structs.replace(
                moment, generators=[each for pool, each in zip(pools, moment.generators, strict=False) if pool == name]
            )
            for moment in (step.before, step.now)
        )
        yield Reading(metrics.generated_by(name), _grown(before, now, "tokens_generated") / step.time.seconds)
        time = now.time - before.time
        if time.wall > 0:
            yield Reading(idle_in_pool(name), time.idle)


def _scores(moment: Moment) -> ScoringUse:
    return sum((each.scoring for each in moment.generators), ScoringUse())


def _taught(moment: Moment) -> TeachingUse:
    return sum((each.teaching for each in moment.generators), TeachingUse())


def _grown(before: Moment, now: Moment, counter: str) -> int:
    """Return by how much a counter grew in all generators together."""
    then, since = (sum(int(getattr(each, counter)) for each in moment.generators) for moment in (before, now))
    return since - then
