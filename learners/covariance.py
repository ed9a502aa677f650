"""Which tokens a covariance loss treats apart: few of those that move entropy most. Chosen over the whole batch, before the step.

The covariance of a token is ``(log p - mean log p) * (A - mean A)``, with means over the batch's tokens in the loss and ``p`` the
behaviour policy's probability: it is known before the forward pass, and so the choice does not depend on how the batch is divided
over micro-batches and ranks (Cui et al. 2025, arXiv:2505.22617).
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from asyncrl.core.batch import Batch
from asyncrl.core.recipe.algorithm import ClipCovLoss, KlCovLoss
from learners.micro_batch import MicroBatch


def single_out(
    logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    draw: Tensor,
    config: ClipCovLoss | KlCovLoss,
    add: Callable[[Tensor], Tensor],
    gather: Callable[[Tensor], Tensor],
) -> Tensor:
    """bool [n], the tokens of this rank that are treated apart; at least one of the batch, if one may be.

    ``kl_cov`` takes the ``share`` of highest covariance; ``clip_cov`` as many at random among those between ``low`` and ``high``.

    Args:
        logp, advantages: [n], of this rank's tokens.
        mask: bool [n], those in the loss.
        draw: float64 [n] in [0, 1), random numbers that belong to the tokens, wherever they are.
        add: the sum of a tensor over the ranks that divide the batch.
        gather: their tensors end to end, each of the same length.
    """
    logp, chosen = logp.double(), advantages.double()
    sums = torch.stack([mask.double(), torch.where(mask, logp, 0.0), torch.where(mask, chosen, 0.0)]).sum(1)
    count, logp_sum, advantage_sum = add(sums).unbind()
    covariance = (logp - logp_sum / count) * (chosen - advantage_sum / count)
    number = max(1, int(config.share * count.item()))
    match config:
        case KlCovLoss():
            rank_of, eligible = covariance, mask
        case ClipCovLoss(low=low, high=high):
            rank_of, eligible = -draw, mask & (covariance > low) & (covariance < high)
    mine = torch.where(eligible, rank_of, -torch.inf)
    # Each rank's best ``number`` hold the batch's best; all ranks send as many, so that they fit together.
    best = mine.new_full((number,), -torch.inf)
    kept = mine.topk(min(number, len(mine))).values
    best[: len(kept)] = kept
    threshold = gather(best).topk(number).values[-1]
    return eligible & (mine >= threshold)


def draws(batch: Batch, rows: Sequence[Sequence[int]], packed: Sequence[MicroBatch]) -> Tensor:
    """float64 [n], a random number in [0, 1) of each token of the micro-batches, a function of version, row and place in it.

    Args:
        rows: the rows of each micro-batch, as indexes into the batch's.
    """
    drawn = [np.empty(0)]
    for numbers, part in zip(rows, packed, strict=True):
        tokens = torch.bincount(part.row, minlength=part.rows).tolist()
        for record, count in zip([batch.rows[number] for number in numbers], tokens, strict=True):
            seed = (batch.version, record.group_id, record.sample_index)
            drawn.append(np.random.default_rng(seed).random(count))
    return torch.from_numpy(np.concatenate(drawn))
