"""Filters leave out complete groups from training; new tasks take their place (Yu et al. 2025, arXiv:2503.14476).

A filter decides by what is known when the group is complete; :mod:`buffers.staleness` decides by when a group is trained.
"""

from collections.abc import Sequence

from asyncrl.core.recipe.buffer import AccuracyWindowFilterConfig, ZeroVarianceFilterConfig
from asyncrl.core.reward_spread import has_spread

Filter = ZeroVarianceFilterConfig | AccuracyWindowFilterConfig


def left_out_by(filters: Sequence[Filter], rewards: Sequence[float], parts: Sequence[Sequence[float]]) -> str:
    """Return why a group is left out, as one of a few fixed texts; empty if the group is trained.

    Args:
        rewards: final rewards of the episodes.
        parts: for each episode, the rewards that the recipe names one by one. A group has variance if its final rewards
            or any of these rewards have.
    """
    for chosen in filters:
        match chosen:
            case ZeroVarianceFilterConfig():
                if not any(map(has_spread, [rewards, *zip(*parts, strict=True)])):
                    return "zero variance"
            case AccuracyWindowFilterConfig(low=low, high=high):
                if not low <= sum(rewards) / len(rewards) <= high:
                    return "mean reward outside the window"
    return ""
