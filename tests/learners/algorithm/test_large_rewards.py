"""The largest rewards that are let in give advantages that are neither lost nor infinite, against exact fractions."""

import math
from fractions import Fraction

import pytest
import torch

from asyncrl.core.recipe.advantage import (
    BestOfGroupAdvantageConfig,
    GpgAdvantageConfig,
    GrpoAdvantageConfig,
    OpoAdvantageConfig,
    ReinforcePlusPlusAdvantageConfig,
    RlooAdvantageConfig,
)
from asyncrl.core.reward_range import LARGEST_REWARD
from asyncrl.learners.algorithm.advantages import Returns, advantages, decoupled_advantages
from asyncrl.learners.algorithm.value_loss import value_loss

REWARDS = [LARGEST_REWARD, -LARGEST_REWARD, LARGEST_REWARD / 2, 0.0]
KINDS = [
    GrpoAdvantageConfig(),
    GrpoAdvantageConfig(normalize="mean"),
    RlooAdvantageConfig(),
    OpoAdvantageConfig(),
    GpgAdvantageConfig(),
    BestOfGroupAdvantageConfig(),
    ReinforcePlusPlusAdvantageConfig(),
    ReinforcePlusPlusAdvantageConfig(baseline="group"),
]


def returns(values):
    group = torch.zeros(len(values), dtype=torch.int64)
    return Returns(torch.tensor(values, dtype=torch.float64), group, torch.ones(len(values), dtype=torch.int64))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_of_advantage_scales_with_its_rewards(kind):
    small, large = (advantages(returns([each / divisor for each in REWARDS]), kind) for divisor in (LARGEST_REWARD, 1.0))
    standardised = isinstance(kind, ReinforcePlusPlusAdvantageConfig) or kind == GrpoAdvantageConfig()
    assert small.any()
    assert large.tolist() == pytest.approx((small * (1.0 if standardised else LARGEST_REWARD)).tolist(), rel=1e-6)


def test_standardising_is_that_of_exact_fractions():
    exact = [Fraction(each) for each in REWARDS]
    mean = sum(exact) / len(exact)
    variance = sum((each - mean) ** 2 for each in exact) / len(exact)
    expected = [float((each - mean) / Fraction(math.isqrt(int(variance)))) for each in exact]
    assert advantages(returns(REWARDS), GrpoAdvantageConfig()).tolist() == pytest.approx(expected, rel=1e-6)
    column = torch.tensor(REWARDS, dtype=torch.float64)[:, None]
    one = decoupled_advantages(column, torch.tensor([1.0]), torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.int64))
    assert one.tolist() == pytest.approx(expected, rel=1e-6)


def test_the_critic_s_square_of_the_largest_reward_is_finite():
    values, returned = torch.zeros(4, requires_grad=True), torch.tensor(REWARDS)
    everyone = torch.ones(4, dtype=torch.bool)
    loss = value_loss(values, values.detach(), returned, everyone, torch.ones(4), 0.2, 4.0).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(values.grad).all()
