import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.recipe.schema import GrpoAdvantage
from learners.advantages import group_relative_advantages

GROUPS = st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=6), min_size=1, max_size=5)


def advantages_of(groups, normalize):
    rewards = torch.tensor([reward for group in groups for reward in group], dtype=torch.float64)
    index = torch.tensor([number for number, group in enumerate(groups) for _ in group])
    return group_relative_advantages(rewards, index, GrpoAdvantage(normalize=normalize)).split([len(group) for group in groups])


@given(GROUPS)
def test_mean_only_subtracts_each_groups_mean(groups):
    for group, result in zip(groups, advantages_of(groups, "mean"), strict=True):
        mean = sum(group) / len(group)
        assert result.tolist() == pytest.approx([reward - mean for reward in group], abs=1e-4)


def test_mean_std_divides_by_the_population_standard_deviation():
    (result,) = advantages_of([[0.0, 0.0, 0.0, 1.0]], "mean_std")
    assert result.tolist() == pytest.approx([-0.25 / 0.1875**0.5] * 3 + [0.75 / 0.1875**0.5])


@pytest.mark.parametrize("normalize", ["mean", "mean_std"])
def test_groups_that_prefer_nothing_have_no_advantage(normalize):
    # 0.1 three times has a mean that is not 0.1 in floating point.
    alone, equal, varied = advantages_of([[3.0], [0.1] * 3, [0.0, 1.0]], normalize)
    assert alone.tolist() == [0.0]
    assert equal.tolist() == [0.0] * 3
    assert varied[1] > 0 > varied[0]


def test_groups_need_not_be_contiguous():
    result = group_relative_advantages(torch.tensor([0.0, 10.0, 1.0, 30.0]), torch.tensor([0, 1, 0, 1]), GrpoAdvantage())
    assert result.tolist() == pytest.approx([-1.0, -1.0, 1.0, 1.0])
