"""What a training step and its batch say in readings."""

import msgspec
import played_episodes
import pytest
from played_episodes import in_batch
from samples import make_buffer

from asyncrl.core.batch import Batch
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.measures.buffer_statistics import BufferStatistics, LedgerCounts
from asyncrl.core.measures.metrics import Reading, combine
from asyncrl.core.measures.time_split import GeneratorTime, IdleShares, LearnerTime, TimeSplit
from asyncrl.core.trajectory import StopReason
from asyncrl.generators.evaluation import EvaluationResult
from asyncrl.generators.worker import GeneratorStatistics
from asyncrl.learners.metrics import STALENESS_MAX, STALENESS_MEAN, TOKENS_COMPUTED
from asyncrl.run.measures.declared_metrics import metric_called
from asyncrl.run.measures.events import RunEvent
from asyncrl.run.measures.measure_file import StepMeasure
from asyncrl.run.measures.progress import RunProgress
from asyncrl.run.measures.step_readings import MeasuredStep, Moment, TrainedStep, batch_readings, step_readings
from asyncrl.run.measures.summary import PlayedEvaluation
from asyncrl.run.measures.totals import Totals
from asyncrl.run.recipe.compose import compose
from asyncrl.run.recorder import Recorder, versions_of


def record(group, sample, reward):
    made = {"group_id": GroupId(group), "sample_index": sample, "reward": reward, "committed_version": PolicyVersion(0)}
    return in_batch(played_episodes.record(length=20 + sample, sampled=((PolicyVersion(0), 10),), **made))


def test_groups_whose_rewards_differ_by_rounding_have_no_variance():
    rows = (record(0, 0, 0.1 + 0.2 + 0.3), record(0, 1, 0.3 + 0.2 + 0.1), record(1, 0, 0.0), record(1, 1, 1.0))
    readings = combine(batch_readings(Batch(PolicyVersion(0), PolicyVersion(0), rows)))
    assert readings["reward/zero_variance_groups"] == 0.5
    assert readings["episode/tokens"] == 20.5


def test_trained_episodes_are_counted_by_why_they_ended():
    long = [msgspec.structs.replace(record(0, sample, 1.0), stop_reason=StopReason.TURN_LENGTH) for sample in range(2)]
    greedy = msgspec.structs.replace(record(0, 3, 0.0), stop_reason=StopReason.TOOL_ERROR, greedy=True)
    rows = (*long, record(0, 2, 1.0), record(1, 0, 1.0), greedy)
    readings = combine(batch_readings(Batch(PolicyVersion(0), PolicyVersion(0), rows)))
    shares = {reason: readings[f"episode/stopped_{reason}"] for reason in StopReason}
    assert {reason: share for reason, share in shares.items() if share} == {"turn_length": 0.5, "environment_done": 0.5}


def test_a_greedy_episode_counts_apart():
    rows = (msgspec.structs.replace(record(0, 0, 1.0), greedy=True), record(0, 1, 0.25))
    readings = combine(batch_readings(Batch(PolicyVersion(0), PolicyVersion(0), rows)))
    assert (readings["reward/mean"], readings["reward/greedy_mean"]) == (0.25, 1.0)
    assert readings["reward/zero_variance_groups"] == 0.0


def test_an_evaluation_knows_the_versions_that_it_saw():
    def played(oldest, newest):
        return EvaluationResult(TaskId("t"), 1.0, StopReason.ENVIRONMENT_DONE, 1, oldest, newest)

    assert versions_of([played(4, 4), played(3, 5), played(None, None)], PolicyVersion(4)) == (3, 5)
    assert versions_of([played(None, None)], PolicyVersion(4)) == (4, 4), "no token was sampled"


def counted(committed: int = 0, filtered: int = 0) -> BufferStatistics:
    ledger = LedgerCounts(
        issued=committed + filtered,
        running=0,
        committed=committed,
        taken=0,
        trained=0,
        filtered=filtered,
        expired=0,
        failed=0,
        reasons={},
    )
    return msgspec.structs.replace(make_buffer().statistics(), ledger=ledger)


def generator(tokens: int, wall: float, idle: float) -> GeneratorStatistics:
    return GeneratorStatistics(tokens, time=GeneratorTime(sampling=wall - idle, nothing=idle))


def readings_of(before: list[GeneratorStatistics], after: list[GeneratorStatistics], pools: list[str]) -> dict[str, float]:
    """The readings of a step of two seconds."""
    batch = Batch(PolicyVersion(0), PolicyVersion(0), (record(0, 0, 1.0),))
    was, now = Moment(5.0, before, counted(2, 1)), Moment(7.0, after, counted(3, 4))
    return combine(
        step_readings(MeasuredStep.between(was, now, TrainedStep(batch, [], LearnerTime(training=1.5), 0.25), 0.5), pools)
    )


def test_each_pool_has_its_own_rate_and_idle_share():
    before = [generator(0, 0, 0), generator(100, 10, 0), generator(50, 10, 10)]
    after = [generator(10, 2, 1), generator(140, 12, 1), generator(60, 12, 12)]
    found = readings_of(before, after, ["generators", "generators", "small"])
    assert {name: value for name, value in found.items() if name.startswith(("generators/generators/", "generators/small/"))} == {
        "generators/generators/tokens_per_s": 25.0,
        "generators/small/tokens_per_s": 5.0,
    }
    idle = {"idle/generators.generators": 0.5, "idle/generators.small": 1.0, "idle/generators": 2 / 3, "idle/learner": 0.25}
    assert {name: value for name, value in found.items() if name.startswith("idle/")} == pytest.approx(idle)


def test_one_pool_needs_no_further_metrics():
    found = readings_of([generator(0, 0, 0)] * 2, [generator(1, 1, 0)] * 2, ["generators"] * 2)
    assert {name for name in found if name.startswith("idle/")} == {"idle/generators", "idle/learner"}


def test_a_generator_that_came_since_the_step_before_counts_from_0():
    found = readings_of([generator(100, 10, 5)], [generator(102, 12, 6), generator(4, 1, 1)], ["generators"] * 2)
    assert (found["generators/tokens_per_s"], found["idle/generators"]) == (3.0, pytest.approx(2 / 3))
    assert found["time/generators/nothing"] == pytest.approx(0.75), "it was not there for a second of the two"


def test_rates_are_over_the_time_between_two_steps():
    found = readings_of([generator(0, 0, 0)], [generator(500, 2, 0)], ["generators"])
    assert (found["generators/tokens_per_s"], found["learner/tokens_per_s"], found["run/trajectories_per_s"]) == (
        250.0,
        10.0,
        0.5,
    )
    assert (found["publish/delivery_seconds"], found["run/cores_busy"]) == (0.25, 0.5)
    assert found["buffer/filtered_groups"] == 0.75


class Heard:
    """View and tracker in one."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.measures: list[StepMeasure] = []
        self.events: list[RunEvent] = []

    def note(self, text: str, level: int = 0) -> None:
        self.notes.append(text)

    def log(self, step: int, values: dict[str, float]) -> None:
        self.logged.append((step, values))

    def log_evaluated(self, version: int) -> None:
        pass

    def tell(self, event: RunEvent) -> None:
        self.events.append(event)

    def log_measure(self, measure: StepMeasure) -> None:
        self.measures.append(measure)


def test_evaluations_that_are_left_out_are_counted_in_the_metrics_and_named_with_the_next_one():
    heard, totals = Heard(), Totals()
    recorder = Recorder(compose("quickstart", ["steps=100", "evaluation.every=5"]), None, None, heard, heard, totals)

    def evaluate(version: int, newest: int) -> None:
        recorder.evaluation(
            PolicyVersion(version), [EvaluationResult(TaskId("t"), 0.5, StopReason.ENVIRONMENT_DONE, 1, version, newest)]
        )

    evaluate(0, 0)
    for version in (60, 65, 70, 55):
        recorder.skip_evaluation(PolicyVersion(version))
    evaluate(70, 74)
    evaluate(75, 75)
    assert [line.partition(" over ")[0] for line in heard.notes] == [
        "version 0: evaluation reward 0.500",
        "versions 70 to 74: evaluation reward 0.500",
        "version 75: evaluation reward 0.500",
    ]
    assert [line.partition("; ")[2] for line in heard.notes] == [
        "",
        "versions 55, 60, 65 were due since the last one, and are left out",
        "",
    ]
    skipped = [(step, values["evaluation/skipped"]) for step, values in heard.logged if "evaluation/skipped" in values]
    assert skipped == [(60, 1), (65, 2), (70, 3), (55, 4)]
    recorder.resumed(PolicyVersion(86))
    assert totals.now().skipped_evaluations == [60, 65, 55, 80, 85]


class World(Heard):
    """Generators, buffer, tracker and view of a run, whose counters grow by the same in each training step of two seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.shown = 0, []
        self.training_pools, self.sizes = ["generators"], {"generators": 1}
        self.pool, self.buffer = self, self.Buffer(self)

    class Buffer:
        def __init__(self, world: "World") -> None:
            self.world = world

        async def statistics(self) -> BufferStatistics:
            return counted(committed=self.world.steps)

    async def statistics(self) -> list[GeneratorStatistics]:
        return [generator(100 * self.steps, 2.0 * self.steps, 0.5 * self.steps)]

    def log_trained(self, step: int) -> None:
        pass

    def update(self, progress: RunProgress, metrics: dict[str, float]) -> None:
        self.shown.append(progress)
        assert metrics == self.logged[-1][1]


async def test_a_training_step_is_recorded_in_totals_metrics_and_view() -> None:
    world, totals = World(), Totals()
    totals.evaluation(played := PlayedEvaluation(PolicyVersion(0), PolicyVersion(0), PolicyVersion(0), 0.5))  # before a resume
    recipe = compose("quickstart", ["steps=100", "buffer.pipeline_depth=1"])
    recorder = Recorder(recipe, world, world.buffer, world, world, totals, clock=lambda: 2.0 * world.steps)
    await recorder.begin()
    batch = Batch(PolicyVersion(0), PolicyVersion(0), (record(0, 0, 1.0), record(0, 1, 0.5)))
    learner = LearnerTime(waiting=0.5, training=1.25, writing=0.25, forward=1.0)
    for world.steps in (1, 2):
        readings = [Reading(STALENESS_MEAN, 1.0, 20), Reading(STALENESS_MAX, 2.0), Reading(TOKENS_COMPUTED, 41.0)]
        await recorder.step(world.steps, TrainedStep(batch, readings, learner, 0.5))
    logged, progress, now = world.logged[-1][1], world.shown[-1], totals.now()
    assert [name for name in logged if metric_called(name) is None] == []
    assert (logged["idle/generators"], logged["idle/learner"]) == (0.25, 0.25)
    assert progress.time.idle == now.time.idle == IdleShares(0.25, 0.25)
    assert (logged["generators/tokens_per_s"], logged["learner/computed_tokens_per_s"]) == (50.0, 20.5)
    assert (progress.time.generated_per_s, progress.time.trained_per_s) == (50.0, 20.5)
    assert (progress.step, progress.reward, progress.staleness_max, progress.delivery_s) == (2, 0.75, 2.0, 0.5)
    assert (now.steps, now.time.seconds, now.time.trajectories, now.trajectories_per_s) == (2, 4.0, 4, 1.0)
    assert (now.tokens_generated, now.staleness_mean, now.staleness_max) == (200, 1.0, 2)
    assert [(each.step, each.rows, each.computed_tokens, each.staleness_max) for each in world.measures] == [
        (1, 2, 41, 2),
        (2, 2, 41, 2),
    ]
    assert sum((each.time for each in world.measures), TimeSplit()) == now.time
    assert totals.bottleneck is not None
    assert totals.bottleneck.sentence.startswith("learner-bound: in the last 2 training steps the learner trained for 62 %")
    assert progress.bottleneck == totals.bottleneck
    assert progress.evaluation == played
