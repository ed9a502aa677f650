"""The critic's loss. A pure function of tensors, summed so that parts of a batch add up to the batch's loss."""

from typing import NamedTuple

import torch
from torch import Tensor


class ValueOutcome(NamedTuple):
    """The loss (float32 scalar, the part's share of the batch's), and for each token whether the clip removed its gradient (bool
    [n])."""

    loss: Tensor
    clipped: Tensor


def value_loss(
    values: Tensor, before: Tensor, returns: Tensor, mask: Tensor, share: Tensor, clip: float, denominator: float
) -> ValueOutcome:
    """``sum(share * max((v - R)**2, (held v - R)**2) / 2) / denominator`` over the tokens in the mask.

    Args:
        values: float32 [n], with gradient.
        before: [n], values before the first step of the batch, within ``clip`` of which ``v`` is held; 0 does not hold it.
        returns: [n], what the values are to be.
        mask: bool [n], tokens that may enter the loss.
        share: [n], see :class:`.loss_tokens.LossTokens`.

    Source: Schulman et al. 2017, arXiv:1707.06347, as implemented there.
    """
    free = (values - returns).square()
    held = free
    if clip:
        moved = values - before
        # Only where it binds: adding and taking off the same number rounds, and a rounding is no clip.
        held = torch.where(moved.abs() > clip, (before + moved.clamp(-clip, clip) - returns).square(), free)
    terms = torch.where(mask, share * torch.maximum(free, held) / 2, 0.0)
    return ValueOutcome(terms.sum() / denominator, mask & (held > free))
