"""Credit: which part of an episode is credited with its rewards. Pure functions of tensors."""

import torch
from torch import Tensor

from asyncrl.learners.algorithm.gae import discounted_sums


def turn_returns(rewards: Tensor, row: Tensor, discount: float) -> Tensor:
    """float64 [turns], each turn's reward plus the rewards of the later turns of its row, discounted once for each
    turn.

    Args:
        rewards: [turns], row after row, each row's turns in order.
        row: int64 [turns], the row of each turn, not decreasing.
    """
    goes_on = torch.zeros(len(row), dtype=torch.float64)
    goes_on[:-1] = (row[1:] == row[:-1]).double()
    return discounted_sums(rewards.double(), discount * goes_on)


def turn_places(row: Tensor) -> Tensor:
    """int64 [turns], the place of each turn in its row, counted from 0; ``row`` as in :func:`turn_returns`."""
    number = torch.arange(len(row))
    begins = torch.ones(len(row), dtype=torch.bool)
    begins[1:] = row[1:] != row[:-1]
    return number - torch.where(begins, number, 0).cummax(0).values if len(row) else number


def turn_groups(group: Tensor, place: Tensor) -> Tensor:
    """int64 [turns], the number of the set of turns that each turn is compared with: the turns of its group at the same
    place.

    Comparing by place gives a baseline for similar states: what is still to come after the third turn is not compared
    with what is to come after the first (turn-level advantages, Zeng et al. 2025, arXiv:2505.11821). A turn at a place
    that no other row of the group reached is alone, and has no group-relative advantage.

    Args:
        group: int64 [turns], the group of each turn's row.
        place: int64 [turns], see :func:`turn_places`.
    """
    number: Tensor = torch.unique(torch.stack([group, place], 1), dim=0, return_inverse=True)[1]
    return number
