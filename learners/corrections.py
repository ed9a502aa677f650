"""Corrections for having sampled with another policy than the one being trained. Pure functions of tensors."""

import torch
from torch import Tensor

from asyncrl.core.recipe.schema import NoCorrection, TruncatedImportance


def importance_weights(log_ratio: Tensor, config: TruncatedImportance | NoCorrection) -> Tensor:
    """Weight of each token's loss term, a constant to the gradient.

    Token by token, never a product over the row: a product's variance grows exponentially with the row's length.

    Args:
        log_ratio: float32 [tokens], log of proximal / behaviour probability.

    Returns:
        float32 [tokens]: ``min(exp(log_ratio), bound)``, or 1 without a correction.

    Source: the decoupled objective of Hilton et al. 2022, arXiv:2110.00641; truncation as in Espeholt et al. 2018,
    arXiv:1802.01561.
    """
    match config:
        case NoCorrection():
            return torch.ones_like(log_ratio)
        case TruncatedImportance(bound=bound):
            return log_ratio.detach().exp().clamp(max=bound)
