"""Rates are found again in what was made of them."""

import numpy as np
import pytest

from asyncrl.core.measures.step_moments import PAIRS, StepMoments, add_step
from asyncrl.planning.rate_fit import least_squares

VARIABLES = ("steps", "prompts", "sampled", "context")


def moments(parts: tuple[float, ...], noise: float = 0.0, *, same_requests: bool = False) -> StepMoments:
    rng = np.random.default_rng(0)
    sums = [0.0] * len(PAIRS)
    for _ in range(3000):
        sampled = 16 if same_requests else int(rng.integers(1, 64))
        prompts, context = int(rng.integers(0, 2) * rng.integers(20, 400)), int(sampled * rng.integers(50, 900))
        seconds = float(np.dot(parts, (1, prompts, sampled, context)) * rng.normal(1, noise))
        add_step(sums, (1, prompts, sampled, context, seconds, 2 * seconds))
    return StepMoments.of(sums)


def test_what_steps_cost_is_found_again():
    parts = (5e-3, 2e-5, 1e-4, 3e-8)
    for of_what, times in (("seconds", 1), ("cpu", 2)):
        found, error = least_squares(moments(parts), VARIABLES, of_what)
        assert [found[name] for name in VARIABLES] == pytest.approx([times * part for part in parts], rel=1e-4)
        assert error < 1e-3
    found, error = least_squares(moments(parts, 0.2), VARIABLES, "seconds")
    assert found["steps"] == pytest.approx(parts[0], rel=0.1)
    assert 0.1 < error < 0.3


def test_nothing_costs_less_than_nothing():
    found, _ = least_squares(moments((5e-3, 2e-5, 0.0, 0.0), 0.3), VARIABLES, "seconds")
    assert min(found.values()) >= 0
    assert found["prompts"] == pytest.approx(2e-5, rel=0.2)


def test_what_never_varied_is_divided_somehow_but_adds_up():
    parts = (5e-3, 2e-5, 1e-4, 3e-8)
    found, error = least_squares(moments(parts, same_requests=True), VARIABLES, "seconds")
    assert found["steps"] + 16 * found["sampled"] == pytest.approx(parts[0] + 16 * parts[2], rel=1e-3)
    assert error < 1e-3


def test_two_readings_subtract():
    one, other = moments((1.0, 0, 0, 0)), moments((1.0, 0, 0, 0))
    assert (one + other).total("steps") == 6000
    assert (one + other - one).products == pytest.approx(other.products)
