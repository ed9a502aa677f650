"""Which complete groups are left out, and why. Their place is given to new tasks (Yu et al. 2025, arXiv:2503.14476).

What decides here is known when a group is complete; what depends on when it is trained belongs to :mod:`buffers.staleness`.
"""

from collections.abc import Sequence

from asyncrl.core.recipe.schema import AccuracyWindowFilter, ZeroVarianceFilter
from asyncrl.core.spread import has_spread

Filter = ZeroVarianceFilter | AccuracyWindowFilter


def left_out_by(filters: Sequence[Filter], rewards: Sequence[float], parts: Sequence[Sequence[float]]) -> str:
    """Why a group is left out, of a fixed vocabulary; empty if it is trained.

    Args:
        rewards: of its episodes.
        parts: the rewards that the recipe tells apart, of each; a group has variance if the final reward or any of these has.
    """
    for chosen in filters:
        match chosen:
            case ZeroVarianceFilter():
                if not any(map(has_spread, [rewards, *zip(*parts, strict=True)])):
                    return "zero variance"
            case AccuracyWindowFilter(low=low, high=high):
                if not low <= sum(rewards) / len(rewards) <= high:
                    return "mean reward outside the window"
    return ""
