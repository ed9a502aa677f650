"""Advantages against their formulas, group by group in Python, and for pass@k against every set of k."""

import functools
import operator
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.recipe.advantage import (
    BestOfGroupAdvantageConfig,
    GpgAdvantageConfig,
    GrpoAdvantageConfig,
    MaxRlAdvantageConfig,
    OpoAdvantageConfig,
    PassAtKAdvantageConfig,
    ReinforcePlusPlusAdvantageConfig,
    RlooAdvantageConfig,
)
from asyncrl.learners.algorithm.advantages import Returns, advantages, against_greedy, decoupled_advantages, pass_at_k_advantages

GROUPS = st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=6), min_size=1, max_size=5)
KINDS = [
    GrpoAdvantageConfig(normalize="mean"),
    GrpoAdvantageConfig(normalize="mean_std"),
    RlooAdvantageConfig(),
    ReinforcePlusPlusAdvantageConfig(baseline="group"),
    OpoAdvantageConfig(),
    GpgAdvantageConfig(),
    PassAtKAdvantageConfig(k=2),
    MaxRlAdvantageConfig(),
]


def returns_of(groups, tokens=None):
    index = torch.tensor([number for number, group in enumerate(groups) for _ in group])
    values = torch.tensor([value for group in groups for value in group], dtype=torch.float64)
    return Returns(values, index, torch.ones(len(index), dtype=torch.int64) if tokens is None else torch.tensor(tokens))


def advantages_of(groups, config, tokens=None):
    result = advantages(returns_of(groups, tokens), config)
    assert result.dtype == torch.float32
    return [part.tolist() for part in result.split([len(group) for group in groups])]


@given(GROUPS)
def test_mean_only_subtracts_each_groups_mean(groups):
    for group, result in zip(groups, advantages_of(groups, GrpoAdvantageConfig(normalize="mean")), strict=True):
        assert result == pytest.approx([value - np.mean(group) for value in group], abs=1e-4)


def test_mean_std_divides_by_the_population_standard_deviation():
    (result,) = advantages_of([[0.0, 0.0, 0.0, 1.0]], GrpoAdvantageConfig())
    assert result == pytest.approx([-0.25 / 0.1875**0.5] * 3 + [0.75 / 0.1875**0.5])


@given(GROUPS)
def test_leave_one_out_compares_with_the_others(groups):
    for group, result in zip(groups, advantages_of(groups, RlooAdvantageConfig()), strict=True):
        others = [group[:place] + group[place + 1 :] for place in range(len(group))]
        assert result == pytest.approx([v - np.mean(o) if o else 0.0 for v, o in zip(group, others, strict=True)], abs=1e-4)


@pytest.mark.parametrize("config", KINDS)
def test_groups_that_prefer_nothing_have_no_advantage(config):
    # 0.1 three times has a mean that is not 0.1 in floating point.
    alone, equal, varied = advantages_of([[3.0], [0.1] * 3, [0.0, 0.0, 1.0]], config)
    if not isinstance(config, ReinforcePlusPlusAdvantageConfig):
        assert alone == [0.0]
        assert equal == [0.0] * 3
    assert varied[2] > 0 > varied[1]


ROUNDING = [0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1]


@pytest.mark.parametrize("config", KINDS)
def test_rewards_that_differ_by_rounding_are_equal(config):
    exact = advantages_of([[0.6, 0.6], [0.0, 0.0, 1.0]], config)
    rounded = advantages_of([ROUNDING, [0.0, 0.0, 1.0]], config)
    assert rounded[0][0] == rounded[0][1]
    for one, other in zip(rounded, exact, strict=True):
        assert one == pytest.approx(other)


@pytest.mark.parametrize("config", [*KINDS, ReinforcePlusPlusAdvantageConfig(), BestOfGroupAdvantageConfig()])
def test_a_batch_whose_rewards_differ_by_rounding_prefers_nothing(config):
    assert advantages_of([ROUNDING, ROUNDING[::-1]], config) == [[0.0, 0.0], [0.0, 0.0]]


def test_a_success_short_of_rounding_is_a_success():
    summed = functools.reduce(operator.add, [0.1] * 10)  # sum() corrects its rounding from Python 3.12 on
    assert summed < 1.0
    values = torch.tensor([summed, 1.0, 0.0], dtype=torch.float64)
    expected = pass_at_k_advantages(torch.tensor([1.0, 1.0, 0.0]), torch.zeros(3, dtype=torch.int64), 2, 1.0)
    assert torch.equal(pass_at_k_advantages(values, torch.zeros(3, dtype=torch.int64), 2, 1.0), expected)


def test_groups_need_not_be_contiguous():
    returns = Returns(torch.tensor([0.0, 10.0, 1.0, 30.0]), torch.tensor([0, 1, 0, 1]), torch.ones(4, dtype=torch.int64))
    assert advantages(returns, GrpoAdvantageConfig()).tolist() == pytest.approx([-1.0, -1.0, 1.0, 1.0])


@pytest.mark.parametrize("baseline", ["none", "group"])
def test_reinforce_plus_plus_normalises_over_the_tokens_of_the_batch(baseline):
    groups, tokens = [[1.0, 4.0], [2.0, 2.5, 9.0]], [3, 1, 2, 0, 5]
    flat = np.array([v - (np.mean(g) if baseline == "group" else 0.0) for g in groups for v in g])
    of_tokens = np.repeat(flat, tokens)
    result = advantages_of(groups, ReinforcePlusPlusAdvantageConfig(baseline=baseline), tokens)
    assert [value for group in result for value in group] == pytest.approx((flat - of_tokens.mean()) / of_tokens.std())


def test_equal_rewards_are_still_less_the_mean_of_the_batch():
    """What a group without spread comes to where the batch is normalised afterwards: not 0 (docs/reference/algorithms.md)."""
    groups, tokens = [[5.0, 5.0], [0.0, 1.0]], [1, 1, 1, 7]
    centred = np.array([0.0, 0.0, -0.5, 0.5])
    standard = np.array([0.0, 0.0, -1.0, 1.0])
    equal, _ = advantages_of(groups, ReinforcePlusPlusAdvantageConfig(baseline="group"), tokens)
    of_tokens = np.repeat(centred, tokens)
    assert equal == pytest.approx([-of_tokens.mean() / of_tokens.std()] * 2)
    index, several = torch.tensor([0, 0, 1, 1]), torch.tensor([[5.0], [5.0], [0.0], [1.0]])
    of_tokens = np.repeat(standard, tokens)
    result = decoupled_advantages(several, torch.ones(1), index, torch.tensor(tokens))[:2].tolist()
    assert result == pytest.approx([-of_tokens.mean() / of_tokens.std()] * 2)
    assert min(map(abs, equal + result)) > 0.1


def test_a_batch_without_spread_has_no_advantage():
    assert advantages_of([[0.1] * 3, [0.1] * 2], ReinforcePlusPlusAdvantageConfig()) == [[0.0] * 3, [0.0] * 2]
    assert advantages_of([[1.0, 2.0]], ReinforcePlusPlusAdvantageConfig(), [5, 0]) == [[0.0, 0.0]]


def test_opo_weighs_its_baseline_by_tokens():
    (result,) = advantages_of([[1.0, 0.0, 0.0]], OpoAdvantageConfig(), [6, 1, 2])
    assert result == pytest.approx([1 - 6 / 9, -6 / 9, -6 / 9])


def test_gpg_makes_up_for_groups_without_spread():
    assert advantages_of([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], GpgAdvantageConfig()) == [[1.5, -1.5], [0.0, 0.0], [0.0, 0.0]]


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.integers(2, 5))
def test_pass_at_k_is_the_mean_over_every_set_an_episode_is_in(succeeded, k):
    values = torch.tensor([float(one) for one in succeeded])
    result = pass_at_k_advantages(values, torch.zeros(len(values), dtype=torch.int64), k, 1.0).tolist()
    sets = list(combinations(range(len(succeeded)), k))
    rewards = np.array([float(any(succeeded[place] for place in members)) for members in sets])
    if not sets or rewards.std() == 0:
        assert result == [0.0] * len(succeeded)
        return
    standard = (rewards - rewards.mean()) / rewards.std()
    of_each = [[a for a, members in zip(standard, sets, strict=True) if place in members] for place in range(len(succeeded))]
    assert result == pytest.approx([np.mean(one) for one in of_each])


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_max_rl_averages_the_scores_of_successes_less_those_of_all(succeeded, random):
    """The paper's estimator, of scores that are just numbers here: the mean over successes less the mean over everybody."""
    scores = np.array([random.uniform(-1, 1) for _ in succeeded])
    ((result),) = advantages_of([[2.0 if one else 0.5 for one in succeeded]], MaxRlAdvantageConfig(success=2.0))
    expected = scores[np.array(succeeded)].mean() - scores.mean() if any(succeeded) else 0.0
    assert np.mean(np.array(result) * scores) == pytest.approx(expected, abs=1e-6)


def test_max_rl_weighs_rare_successes_more():
    assert advantages_of([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0], [0.0, 0.0]], MaxRlAdvantageConfig()) == [
        [3.0, -1.0, -1.0, -1.0],
        [0, 0],
        [0, 0],
    ]


@given(GROUPS)
def test_the_best_of_a_group_is_credited_with_what_the_group_would_lose_without_it(groups):
    for group, result in zip(groups, advantages_of(groups, BestOfGroupAdvantageConfig()), strict=True):
        without = [group[:place] + group[place + 1 :] for place in range(len(group))]
        expected = [max(group) - max(others) if others else 0.0 for others in without]
        assert result == pytest.approx(expected, abs=1e-4)


def test_remax_subtracts_the_greedy_episode():
    assert against_greedy(torch.tensor([1.0, 0.25]), torch.tensor([0.5, 0.5])).tolist() == [0.5, -0.25]


def test_decoupled_rewards_are_standardised_one_by_one():
    rewards = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 3.0], [0.0, 5.0], [0.0, 1.0]])
    groups, tokens, weights = [[0, 1], [2, 3, 4]], np.array([1, 2, 3, 4, 5]), [1.0, 0.5]
    summed = np.zeros(5)
    for column, weight in zip(rewards.T, weights, strict=True):
        for members in groups:
            spread = column[members].std()
            if spread:
                summed[members] += weight * (column[members] - column[members].mean()) / spread
    of_tokens = np.repeat(summed, tokens)
    result = decoupled_advantages(
        torch.tensor(rewards), torch.tensor(weights), torch.tensor([0, 0, 1, 1, 1]), torch.tensor(tokens)
    )
    assert result.tolist() == pytest.approx((summed - of_tokens.mean()) / of_tokens.std())


def test_several_rewards_that_differ_by_rounding_prefer_nothing():
    """One by one, and as a sum in which they cancel."""
    index, tokens = torch.tensor([0, 0, 1, 1]), torch.ones(4, dtype=torch.int64)
    rounded = torch.tensor([[ROUNDING[0], 1.0], [ROUNDING[1], 1.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    exact = rounded.clone()
    exact[:2, 0] = 0.6
    weights = torch.ones(2)
    assert torch.equal(decoupled_advantages(rounded, weights, index, tokens), decoupled_advantages(exact, weights, index, tokens))
    cancelling = torch.tensor([[0.1, 0.3], [0.4, 1.2], [0.7, 2.1], [0.2, 0.6]], dtype=torch.float64)
    opposed = decoupled_advantages(cancelling, torch.tensor([1.0, -1.0]), torch.zeros(4, dtype=torch.int64), tokens)
    assert opposed.tolist() == [0.0] * 4
