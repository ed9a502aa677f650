"""Where a step's time went: the parts of each side add up to the step."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.measures.metrics import combine
from asyncrl.run.measures.time_shares import GENERATORS, LEARNER, generator_readings, learner_readings
from asyncrl.run.measures.time_split import StepTimes
from generators.engine_time import TimeUse
from generators.worker import GeneratorStatistics
from learners.step_clock import PartSeconds

SECONDS = st.floats(0, 1e4)
TIMES = st.builds(TimeUse, *[SECONDS] * len(TimeUse.__struct_fields__))


def shares(readings, side: str) -> dict[str, float]:
    return {name.removeprefix(f"time/{side}/"): value for name, value in combine(readings).items()}


@given(st.lists(st.tuples(TIMES, TIMES, SECONDS, SECONDS), min_size=1, max_size=4), st.floats(0.98, 1.02))
def test_the_parts_of_the_generators_add_up(generators, late):
    before = [GeneratorStatistics(time=then, prefill_seconds=1.0) for then, *_ in generators]
    after = [
        GeneratorStatistics(time=then + since, prefill_seconds=1.0 + prefill, decode_seconds=decode)
        for then, since, prefill, decode in generators
    ]
    wall = sum(since.seconds for _, since, *_ in generators) / len(generators)
    if wall < 1:
        return
    found = shares(generator_readings(before, after, late * wall), "generators")
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-6)
    assert set(found) == set(GENERATORS)
    tools = sum(since.tools for _, since, *_ in generators) / len(generators) / wall
    assert found["tools"] == pytest.approx(tools, abs=0.02), "a generator's counters and the driver's clock are read apart"


@given(st.builds(StepTimes, *[SECONDS] * 5, st.builds(PartSeconds, *[SECONDS] * 4)), SECONDS)
def test_the_parts_of_the_learner_add_up(times, beside):
    times = msgspec.structs.replace(times, training=sum(msgspec.structs.astuple(times.parts)) + beside)
    seconds = times.waiting + times.training + times.delivering + times.writing + times.checkpointing
    if seconds < 1:
        return
    found = shares(learner_readings(times, seconds), "learner")
    assert sum(found.values()) == pytest.approx(1.0)
    assert set(found) == set(LEARNER)
    assert found["other"] == pytest.approx(beside / seconds, abs=1e-6)
    assert found["publish"] == pytest.approx((times.delivering + times.writing) / seconds)


def test_sampling_is_divided_as_the_engines_last_measured_it():
    then = GeneratorStatistics(time=TimeUse(sampling=5.0), prefill_seconds=1.0, decode_seconds=3.0)
    now = GeneratorStatistics(time=TimeUse(sampling=7.0, tools=2.0), prefill_seconds=1.0, decode_seconds=3.0)
    found = shares(generator_readings([then], [now], 4.0), "generators")
    assert (found["prefill"], found["decode"], found["tools"]) == (0.125, 0.375, 0.5), "no news of the engine: as so far"
    now = msgspec.structs.replace(now, prefill_seconds=2.0)
    found = shares(generator_readings([then], [now], 4.0), "generators")
    assert (found["prefill"], found["decode"]) == (0.5, 0.0)


def test_a_generator_that_is_gone_does_nothing():
    at_work, gone = GeneratorStatistics(time=TimeUse(sampling=4.0)), GeneratorStatistics()
    found = shares(generator_readings([gone, gone], [at_work, gone], 4.0), "generators")
    assert (found["decode"], found["nothing"]) == (0.5, 0.5)
