from collections import Counter

import msgspec
import pytest

from asyncrl.core.batch import Batch, BatchRow
from asyncrl.core.metrics import Metric, Reading, Reduction
from asyncrl.core.payload import PayloadRef, TrajectoryRecord
from asyncrl.core.trajectory import StopReason
from asyncrl.run.totals import SavedTotals, Totals
from generators.worker import GeneratorStatistics

MEAN = Metric("staleness/mean", "versions", Reduction.MEAN, "")
MAX = Metric("staleness/max", "versions", Reduction.MAX, "")


def statistics(tokens: int, wall: float, idle: float) -> GeneratorStatistics:
    return GeneratorStatistics(tokens, Counter({0: tokens}), wall, idle)


def batch(version: int) -> Batch:
    record = TrajectoryRecord(version, 0, 10, ((version, 6),), 1.0, StopReason.ENVIRONMENT_DONE, PayloadRef(0, "s", 0, 1, 0))
    row = BatchRow.around(record, f"t{version}", 0, 1.0)
    return Batch(version, 0, (row, row))


def train(totals: Totals, steps: range, now: float, tokens: int) -> float:
    for step in steps:
        now += 2.0
        tokens += 100
        readings = [Reading(MEAN, 0.5 * step, 12), Reading(MAX, step)]
        totals.step(step, batch(step - 1), readings, 1.5, now, [statistics(tokens, now, now / 4)], None)
    return now


def test_a_resumed_run_counts_each_step_once():
    whole = Totals()
    whole.begin(0.0, [statistics(0, 0.0, 0.0)])
    train(whole, range(1, 9), 0.0, 0)

    first = Totals()
    first.begin(0.0, [statistics(0, 0.0, 0.0)])
    train(first, range(1, 5), 0.0, 0)
    first.evaluation(0.25)
    checkpoint = msgspec.json.encode(first.now())
    train(first, range(5, 7), 8.0, 400)  # lost with the process

    second = Totals()
    second.resume(msgspec.json.decode(checkpoint, type=SavedTotals), published=5)
    second.begin(100.0, [statistics(0, 100.0, 25.0)])
    train(second, range(5, 9), 100.0, 0)
    second.evaluation(0.75)

    was, now = whole.now(), second.now()
    for name in ("steps", "trajectories", "tokens_trained", "learner_busy", "training", "staleness_sum", "staleness_tokens"):
        assert getattr(now, name) == getattr(was, name), name
    assert (now.staleness_max, now.completion_tokens) == (8, 800)
    assert now.idle_generators == pytest.approx(0.25)
    assert now.idle_learner == pytest.approx(0.25)
    assert now.evaluations == [0.25, 0.75]
    assert second.versions_published == 5
