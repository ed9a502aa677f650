"""The penalty for episodes whose length comes close to where they would be cut off."""

from torch import Tensor

from asyncrl.core.recipe.algorithm import OverlongPenaltyConfig


def overlong_penalties(lengths: Tensor, config: OverlongPenaltyConfig) -> Tensor:
    """float64 [n], what is subtracted from the reward: 0 up to ``limit - ramp`` tokens, then rising linearly to
    ``penalty`` at ``limit``.

    Source: soft overlong punishment, Yu et al. 2025 (DAPO), arXiv:2503.14476, equation 13.

    Args:
        lengths: int64 [n], tokens.
        config: the recipe's penalty.
    """
    return config.penalty * ((lengths.double() - (config.limit - config.ramp)) / config.ramp).clamp(0, 1)
