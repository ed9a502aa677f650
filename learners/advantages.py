"""Advantages: how much better an episode did than its group. Pure functions of tensors."""

import torch
from torch import Tensor

from asyncrl.core.recipe.schema import GrpoAdvantage


def group_relative_advantages(rewards: Tensor, group_index: Tensor, config: GrpoAdvantage) -> Tensor:
    """Reward minus the group's mean, by the recipe divided by the group's population standard deviation.

    Groups of one, and groups whose rewards are all equal, have advantage exactly 0: they say nothing about what to prefer.

    Args:
        rewards: [rows] final reward of each episode.
        group_index: int64 [rows], group of each episode, numbered from 0.

    Returns:
        float32 [rows]. Computed in float64.

    Source: Shao et al. 2024, arXiv:2402.03300; without the division Liu et al. 2025, arXiv:2503.20783.
    """
    rewards = rewards.double()
    groups = int(group_index.max()) + 1 if len(group_index) else 0
    count = torch.bincount(group_index, minlength=groups).double()

    def group_mean(values: Tensor) -> Tensor:
        return (torch.zeros(groups, dtype=torch.float64).index_add_(0, group_index, values) / count)[group_index]

    def group_extreme(which: str) -> Tensor:
        return torch.zeros(groups, dtype=torch.float64).scatter_reduce_(0, group_index, rewards, which, include_self=False)

    advantages = rewards - group_mean(rewards)
    if config.normalize == "mean_std":
        deviation = group_mean(advantages.square()).sqrt()
        advantages = advantages / torch.where(deviation > 0, deviation, 1.0)
    # Asked of the extremes, which are exact: rounding in the mean can give equal rewards a tiny spread, and dividing by it noise.
    varies = (group_extreme("amax") > group_extreme("amin"))[group_index]
    return torch.where(varies, advantages, 0.0).float()
