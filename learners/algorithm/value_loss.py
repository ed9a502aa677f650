"""The critic's loss. A pure function of tensors, summed so that parts of a batch add up to the batch's loss."""

from typing import NamedTuple

import torch
from torch import Tensor


class ValueOutcome(NamedTuple):
    """A micro-batch's share of the loss (float32 scalar), and whether the clip removed each token's gradient (bool [n])."""

    loss: Tensor
    clipped: Tensor


def value_loss(
    values: Tensor, before: Tensor, returns: Tensor, mask: Tensor, share: Tensor, clip: float, denominator: float
) -> ValueOutcome:
    """``sum(share * max((v - R)**2, (held v - R)**2) / 2) / denominator`` over the tokens in the mask.

    Args:
        values: float32 [n], ``v``, with gradient.
        before: [n], the values before the first optimizer step of the batch. ``held v`` is ``v`` clamped to within
            ``clip`` of them.
        returns: [n], ``R``, what the critic is to learn.
        mask: bool [n], tokens that may enter the loss.
        share: [n], see :class:`.loss_tokens.LossTokens`.
        clip: the largest distance from ``before``; 0 for no limit.
        denominator: divides the loss of the whole batch, see :func:`.aggregation.denominator`.

    Source: Schulman et al. 2017, arXiv:1707.06347, as implemented there.
    """
    free = (values - returns).square()
    held = free
    if clip:
        moved = values - before
        # Only where the clip takes effect: subtracting and adding the same number rounds, and rounding is not clipping.
        held = torch.where(moved.abs() > clip, (before + moved.clamp(-clip, clip) - returns).square(), free)
    terms = torch.where(mask, share * torch.maximum(free, held) / 2, 0.0)
    return ValueOutcome(terms.sum() / denominator, mask & (held > free))
