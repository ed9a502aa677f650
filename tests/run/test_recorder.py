"""What a batch's records say of it."""

import msgspec

from asyncrl.core.batch import Batch, BatchRow
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.metrics import combine
from asyncrl.core.payload import PayloadRef
from asyncrl.core.trajectory import StopReason
from asyncrl.run.recorder import batch_readings, versions_of
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
