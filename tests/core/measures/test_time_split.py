"""Where a step's time went: the parts of each side add up to the step, and shares of several steps are shares of their time."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_time import made_time

from asyncrl.core.measures.metrics import Reading, combine
from asyncrl.core.measures.time_split import (
    GENERATORS,
    IDLE_GENERATORS,
    IDLE_LEARNER,
    LEARNER,
    PARTS,
    GeneratorTime,
    IdleShares,
    LearnerTime,
    TimeSplit,
)

SECONDS = st.floats(0, 1e4)
TIMES = st.builds(GeneratorTime, *[SECONDS] * len(PARTS), prefill=SECONDS, decode=SECONDS)


def shares(readings: Sequence[Reading], side: str) -> dict[str, float]:
    beginning = f"time/{side}/"
    return {name.removeprefix(beginning): value for name, value in combine(readings).items() if name.startswith(beginning)}


@given(st.lists(TIMES, min_size=1, max_size=4), st.floats(0.98, 1.02))
def test_the_parts_of_the_generators_add_up(generators, late):
    whole = sum(generators, GeneratorTime())
    wall = whole.wall / len(generators)
    if wall < 1:
        return
    step = TimeSplit(seconds=late * wall, generators=whole, slots=late * wall * len(generators))
    readings = step.readings(whole)
    found = shares(readings, "generators")
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-6)
    assert set(found) == set(GENERATORS)
    tools = whole.tools / whole.wall
    assert found["tools"] == pytest.approx(tools, abs=0.02), "a generator's counters and the driver's clock are read apart"
    idle = combine(readings)[IDLE_GENERATORS.name]
    at_work = ("prefill", "decode", "evaluating")
    assert idle == pytest.approx(1 - sum(found[part] for part in at_work), abs=0.03), "idle: all that is not at work"


@given(st.builds(LearnerTime, *[SECONDS] * 9), SECONDS)
def test_the_parts_of_the_learner_add_up(times, beside):
    computing = times.data + times.forward + times.backward + times.optimizer
    times = msgspec.structs.replace(times, training=computing + beside)
    seconds = times.waiting + times.training + times.delivering + times.writing + times.checkpointing
    if seconds < 1:
        return
    readings = TimeSplit(seconds=seconds, learner=times).readings(GeneratorTime())
    found = shares(readings, "learner")
    assert sum(found.values()) == pytest.approx(1.0)
    assert set(found) == set(LEARNER)
    assert found["other"] == pytest.approx(beside / seconds, abs=1e-6)
    assert found["delivering"] + found["writing"] == pytest.approx((times.delivering + times.writing) / seconds)
    assert combine(readings)[IDLE_LEARNER.name] == pytest.approx(1 - (times.training + times.writing) / seconds, abs=1e-6)


def test_sampling_is_divided_as_the_engines_last_measured_it():
    so_far = GeneratorTime(sampling=7.0, tools=2.0, prefill=1.0, decode=3.0)
    step = TimeSplit(seconds=4.0, generators=GeneratorTime(sampling=2.0, tools=2.0), slots=4.0)
    found = shares(step.readings(so_far), "generators")
    assert (found["prefill"], found["decode"], found["tools"]) == (0.125, 0.375, 0.5), "no news of the engine: as so far"
    step += TimeSplit(generators=GeneratorTime(prefill=1.0))
    found = shares(step.readings(so_far), "generators")
    assert (found["prefill"], found["decode"]) == (0.5, 0.0)


def test_a_generator_that_is_gone_does_nothing():
    step = TimeSplit(seconds=4.0, generators=GeneratorTime(sampling=4.0), slots=8.0)
    found = shares(step.readings(GeneratorTime()), "generators")
    assert (found["decode"], found["nothing"]) == (0.5, 0.5)


def test_shares_are_of_the_time_of_both_sides():
    first = GeneratorTime(sampling=2.0, paused=1.0, tickets=1.0, episodes=40.0, requests=10.0, held_back=2.0)
    second = GeneratorTime(evaluating=1.0, evaluation_tools=1.0, nothing=2.0)
    learner = LearnerTime(waiting=1.0, training=2.0, delivering=0.25, writing=0.75) + LearnerTime(optimizer=0.5)
    time = TimeSplit(seconds=4.0, learner=learner, generators=first + second, slots=8.0, cores=2.0)
    assert (time.training, time.waiting, time.publishing) == (0.5, 0.25, 0.25)
    assert (time.delivering, time.optimizer) == (0.0625, 0.125)
    assert time.idle == IdleShares(generators=0.625, learner=0.3125)
    assert (time.paused, time.held_back, time.evaluating) == (0.125, 0.25, 0.25)
    assert (time.tools, time.busy_cores) == (0.75, 0.5)
    assert time.both_wait == 0.25


def test_shares_of_several_steps_are_shares_of_their_time():
    long = TimeSplit(seconds=3.0, learner=LearnerTime(training=3.0))
    both = long + made_time(training=0.2)
    assert (both.training, both.seconds) == (pytest.approx(0.8), 4.0)
    beside_an_evaluation = TimeSplit(seconds=1.0, generators=GeneratorTime(evaluating=1.0))
    assert (made_time(tools=0.9) + beside_an_evaluation).tools == pytest.approx(0.9, abs=0.01)
