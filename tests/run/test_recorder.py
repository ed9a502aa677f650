"""What a batch's records say of it."""

import msgspec

from asyncrl.core.batch import Batch, BatchRow
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.measures.metrics import combine
from asyncrl.core.payload import PayloadRef
from asyncrl.core.trajectory import StopReason
from asyncrl.run.measures.totals import Totals
from asyncrl.run.recipe.compose import compose
from asyncrl.run.recorder import Recorder, batch_readings, versions_of
from generators.evaluation import EvaluationResult


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
