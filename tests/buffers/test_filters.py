"""Which complete groups are left out."""

import pytest

from asyncrl.buffers.filters import left_out_by
from asyncrl.core.recipe.buffer import AccuracyWindowFilterConfig, ZeroVarianceFilterConfig

WINDOW = AccuracyWindowFilterConfig(low=0.25, high=0.75)


@pytest.mark.parametrize(
    ("filters", "rewards", "why"),
    [
        ((), (1.0, 1.0), ""),
        ((ZeroVarianceFilterConfig(),), (1.0, 1.0), "zero variance"),
        ((ZeroVarianceFilterConfig(),), (1.0,), "zero variance"),
        ((ZeroVarianceFilterConfig(),), (1.0, 0.0), ""),
        ((WINDOW,), (1.0, 1.0), "mean reward outside the window"),
        ((WINDOW,), (0.0, 0.0), "mean reward outside the window"),
        ((WINDOW,), (1.0, 0.0, 0.0, 0.0), ""),
        ((WINDOW,), (1.0, 1.0, 1.0, 0.0), ""),
        ((WINDOW, ZeroVarianceFilterConfig()), (0.5, 0.5), "zero variance"),
        ((ZeroVarianceFilterConfig(), WINDOW), (0.0, 0.0), "zero variance"),
    ],
)
def test_the_first_filter_that_says_no_is_the_reason(filters, rewards, why):
    assert left_out_by(filters, rewards, [rewards]) == why


def test_equal_sums_of_unlike_rewards_have_variance():
    sums = (1.0, 1.0)
    assert left_out_by((ZeroVarianceFilterConfig(),), sums, [sums, (1.0, 0.0), (0.0, 1.0)]) == ""
    assert left_out_by((ZeroVarianceFilterConfig(),), sums, [sums, (1.0, 1.0), (0.0, 0.0)]) == "zero variance"


def test_rewards_that_differ_by_rounding_have_no_variance():
    sums = (0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1)
    assert left_out_by((ZeroVarianceFilterConfig(),), sums, [sums]) == "zero variance"
    assert left_out_by((ZeroVarianceFilterConfig(),), (1.0, 1.0), [(1.0, 1.0), sums, (0.4, 0.4)]) == "zero variance"
    apart = (0.6, 0.6 + 1e-6)
    assert left_out_by((ZeroVarianceFilterConfig(),), apart, [apart]) == ""
