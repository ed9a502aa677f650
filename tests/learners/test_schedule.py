from itertools import pairwise

import pytest

from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.learners.learning_rate import learning_rate


def test_warms_up_then_decays_to_the_floor_at_the_last_step():
    config = LearnerConfig(lr=1.0, warmup_steps=4, min_lr_ratio=0.1)
    rates = [learning_rate(step, 14, config) for step in range(14)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates[-1] == pytest.approx(0.1)
    falls = [a - b for a, b in pairwise(rates[4:])]
    assert falls == pytest.approx([0.1] * 9)


def test_is_constant_by_default():
    assert {learning_rate(step, 100, LearnerConfig(lr=3e-4)) for step in range(100)} == {3e-4}


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_runs_no_longer_than_the_warm_up_never_pass_the_peak(steps):
    config = LearnerConfig(lr=1.0, warmup_steps=3, min_lr_ratio=0.0)
    assert all(0 < learning_rate(step, steps, config) <= 1.0 for step in range(steps))
