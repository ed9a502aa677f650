"""What several pools of generators did, each by itself."""

from asyncrl.run.measures.pool_readings import pool_readings
from generators.worker import GeneratorStatistics


def counters(tokens: int, wall: float, idle: float) -> GeneratorStatistics:
    return GeneratorStatistics(tokens_generated=tokens, wall_seconds=wall, idle_seconds=idle)


def test_each_pool_has_its_own_rate_and_idle_time():
    before = [counters(0, 0, 0), counters(100, 10, 0), counters(50, 10, 10)]
    after = [counters(10, 2, 1), counters(140, 12, 1), counters(60, 12, 12)]
    told = {each.metric.name: each.value for each in pool_readings(["generators", "generators", "small"], before, after, 2.0)}
    assert told == {
        "generators/generators/tokens_per_s": 25.0,
        "generators/generators/idle": 0.5,
        "generators/small/tokens_per_s": 5.0,
        "generators/small/idle": 1.0,
    }


def test_one_pool_needs_no_further_metrics():
    assert not list(pool_readings(["generators"] * 2, [counters(0, 0, 0)] * 2, [counters(1, 1, 0)] * 2, 1.0))
