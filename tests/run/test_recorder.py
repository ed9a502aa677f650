"""What a training step and its batch say in readings."""

import msgspec
import pytest

from asyncrl.core.batch import Batch, BatchRow
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.measures.buffer_statistics import BufferStatistics, LedgerCounts, StaleTokens
from asyncrl.core.measures.metrics import combine
from asyncrl.core.measures.time_split import GeneratorTime, LearnerTime
from asyncrl.core.payload import PayloadRef
from asyncrl.core.trajectory import StopReason
from asyncrl.run.measures.step_readings import MeasuredStep, Moment, TrainedStep, batch_readings, step_readings
from asyncrl.run.measures.totals import Totals
from asyncrl.run.recipe.compose import compose
from asyncrl.run.recorder import Recorder, versions_of
from generators.evaluation import EvaluationResult
from generators.worker import GeneratorStatistics


def record(group, sample, reward):
    return BatchRow(
        group_id=GroupId(group),
        task_id=TaskId("t"),
        sample_index=sample,
        length=20 + sample,
        sampled=((PolicyVersion(0), 10),),
        stop_reason=StopReason.ENVIRONMENT_DONE,
        loss_tokens=10,
        reward=reward,
        committed_version=PolicyVersion(0),
        weight=1.0,
        payload=PayloadRef(0, "", 0, 0, 0),
    )


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
    rows = (msgspec.structs.replace(record(0, 0, 1.0), greedy=True, loss_tokens=0), record(0, 1, 0.25))
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
    return BufferStatistics(
        version=PolicyVersion(0),
        ledger=ledger,
        payload_bytes=0,
        kept_batches=0,
        kept_bytes=0,
        held=(),
        lengths_issued=(),
        lengths_trained=(),
        late_samples=0,
        stale_tokens=StaleTokens(),
        lost_trajectories=0,
        failures={},
        filtered_tasks=(),
        skipped_rows={},
    )


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

    def note(self, text: str, level: int = 0) -> None:
        self.notes.append(text)

    def log(self, step: int, values: dict[str, float]) -> None:
        self.logged.append((step, values))

    def log_evaluated(self, version: int) -> None:
        pass


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
