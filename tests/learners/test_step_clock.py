"""The parts of a training step add up to the whole."""

import pytest
import torch

from asyncrl.core.measures.time_split import LearnerTime
from asyncrl.learners.step_clock import Part, StepClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr("asyncrl.learners.step_clock.time.perf_counter", lambda: now[0])

    def passes(seconds: float) -> None:
        now[0] += seconds

    return StepClock(torch.device("cpu")), passes


def test_the_innermost_part_counts_and_all_add_up(clock):
    clock, passes = clock
    clock.begin()
    passes(1.0)
    with clock.part(Part.BACKWARD):
        passes(2.0)
        for _ in range(3):
            with clock.part(Part.FORWARD):
                passes(4.0)
            passes(8.0)
    passes(0.5)
    with clock.part(Part.OPTIMIZER):
        passes(16.0)
    passes(0.25)
    assert clock.end() == LearnerTime(data=1.75, forward=12.0, backward=26.0, optimizer=16.0)


def test_steps_are_measured_apart_and_what_lies_between_them_is_not(clock):
    clock, passes = clock
    with clock.part(Part.FORWARD):
        passes(5.0)
    for _ in range(2):
        clock.begin()
        passes(1.0)
        assert clock.end() == LearnerTime(data=1.0)
        with clock.part(Part.FORWARD):
            passes(7.0)
