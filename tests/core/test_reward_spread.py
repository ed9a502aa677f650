"""Rounding is no spread; anything more is."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.reward_spread import SPREAD_TOLERANCE, has_spread

SUMS = (0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1.0,), False),
        ((0.1, 0.1, 0.1), False),
        (SUMS, False),
        ((1e6 * SUMS[0], 1e6 * SUMS[1]), False),
        ((-1e6 * SUMS[0], -1e6 * SUMS[1]), False),
        ((0.0, 1e-12), False),
        ((0.0, 1e-8), True),
        ((1e6, 1e6 + 1e-4), False),
        ((1e6, 1e6 + 1e-2), True),
        ((-1.0, 1.0), True),
    ],
)
def test_spread_counts_above_the_tolerance_of_the_largest(values, expected):
    assert SUMS[0] != SUMS[1]
    assert has_spread(values) == has_spread(values[::-1]) == expected


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=12), st.randoms())
def test_the_order_of_a_sum_is_no_spread(terms, random):
    shuffled = random.sample(terms, len(terms))
    assert not has_spread((sum(terms), sum(shuffled), math.fsum(terms)))


@given(st.floats(-1e9, 1e9), st.floats(2, 1e6))
def test_what_is_twice_the_tolerance_apart_is_spread(value, times):
    assert has_spread((value, value + times * SPREAD_TOLERANCE * max(1.0, abs(value))))
