"""Filters leave out complete groups from training; new tasks take their place (Yu et al. 2025, arXiv:2503.14476).

A filter decides by what is known when the group is complete; :mod:`asyncrl.buffers.staleness` decides by when a group is trained.
"""

from collections.abc import Collection, Iterable, Sequence

from asyncrl.core.recipe.buffer import AccuracyWindowFilterConfig, ZeroVarianceFilterConfig
from asyncrl.core.reward_spread import has_spread

Filter = ZeroVarianceFilterConfig | AccuracyWindowFilterConfig


def left_out_by(filters: Sequence[Filter], rewards: Sequence[float], compared: Iterable[Collection[float]]) -> str:
    """Return why a group is left out, as one of a few fixed texts; empty if the group is trained.

    Args:
        rewards: final rewards of the episodes.
        compared: the rewards by which the episodes are compared: each reward of all episodes that have it. A group has variance
            if one of them has.
    """
    for chosen in filters:
        match chosen:
            case ZeroVarianceFilterConfig():
                if not any(map(has_spread, compared)):
                    return "zero variance"
            case AccuracyWindowFilterConfig(low=low, high=high):
                if not low <= sum(rewards) / len(rewards) <= high:
                    return "mean reward outside the window"
    return ""
