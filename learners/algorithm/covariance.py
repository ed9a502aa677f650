"""Chooses the tokens that a covariance loss treats differently: a few of those that move entropy most.

The choice is made over the whole batch, before the training step. The covariance of a token is
``(log p - mean log p) * (A - mean A)``, with means over the batch's tokens in the loss; ``p`` is the behaviour policy's
probability. It is known before the forward pass, so the choice does not depend on how micro-batches and ranks divide
the batch (Cui et al. 2025, arXiv:2505.22617).
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from asyncrl.core.batch import Batch
from asyncrl.core.recipe.loss import ClipCovLossConfig, KlCovLossConfig
from asyncrl.learners.algorithm.loss_tokens import LossTokens


def single_out(
    logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    draw: Tensor,
    config: ClipCovLossConfig | KlCovLossConfig,
    add: Callable[[Tensor], Tensor],
    gather: Callable[[Tensor], Tensor],
) -> Tensor:
    """bool [n], the tokens of this rank that are treated differently.

    Their number over all ranks is exactly ``config.share`` of the batch's tokens, rounded down and at least one, if
    that many qualify. ``kl_cov`` takes the tokens of highest covariance and, among equals, those with the smallest
    draw. ``clip_cov`` takes the tokens with the smallest draw among all whose covariance lies between ``low`` and
    ``high``.

    Args:
        logp, advantages: [n], behaviour log-probabilities and advantages of this rank's tokens.
        mask: bool [n], the tokens in the loss.
        draw: float64 [n] in [0, 1), a random number for each token, which does not depend on the rank that has the
            token.
        config: the recipe's loss.
        add: sums a tensor over the ranks that divide the batch.
        gather: concatenates the ranks' tensors, which have the same length.
    """
    logp, chosen = _summable(logp), _summable(advantages)
    sums = torch.stack([mask.double(), torch.where(mask, logp, 0.0), torch.where(mask, chosen, 0.0)]).sum(1)
    count, logp_sum, advantage_sum = add(sums).unbind()
    covariance = (logp - logp_sum / count) * (chosen - advantage_sum / count)
    number = max(1, int(config.share * count.item()))
    match config:
        case KlCovLossConfig():
            value, eligible = covariance, mask
        case ClipCovLossConfig(low=low, high=high):
            value, eligible = torch.zeros_like(covariance), mask & (covariance > low) & (covariance < high)
    mine = torch.stack([torch.where(eligible, value, -torch.inf), draw])
    # Each rank's best ``number`` include the batch's best. All ranks send equally many, as gather needs.
    best = mine.new_full((2, number), -torch.inf)
    kept = mine[:, _best_first(*mine)[:number]]
    best[:, : kept.shape[1]] = kept
    everyone = gather(best.flatten()).reshape(-1, 2, number).transpose(0, 1).flatten(1)
    last_value, last_draw = everyone[:, _best_first(*everyone)[number - 1]].unbind()
    return eligible & ((mine[0] > last_value) | ((mine[0] == last_value) & (draw <= last_draw)))


def _summable(values: Tensor) -> Tensor:
    """``values`` in float64, rounded to multiples of ``2**-24``: sums up to ``2**29`` are exact, and so the same in
    every order.

    Otherwise the rounding of a mean would depend on the order, and where covariances are equal or nearly so, the choice
    would depend on how the batch is divided.
    """
    return (values.double() * 2**24).round() / 2**24


def _best_first(value: Tensor, draw: Tensor) -> Tensor:
    """int64 [n], the indexes sorted by falling value and, where values are equal, by rising draw."""
    by_draw = draw.argsort(stable=True)
    return by_draw[value[by_draw].argsort(descending=True, stable=True)]


def draws(batch: Batch, rows: Sequence[Sequence[int]], packed: Sequence[LossTokens]) -> Tensor:
    """float64 [n], a random number in [0, 1) for each token of the micro-batches. It depends only on the version, the
    row and the token's place in the row.

    Args:
        rows: the rows of each micro-batch, as indexes into ``batch.rows``.
        packed: the micro-batches.
    """
    drawn = [np.empty(0)]
    for numbers, part in zip(rows, packed, strict=True):
        tokens = torch.bincount(part.rows.index, minlength=part.rows.count).tolist()
        for record, count in zip([batch.rows[number] for number in numbers], tokens, strict=True):
            further = [record.part] if record.part else []
            seed = (batch.version, record.group_id, record.sample_index, *further)
            drawn.append(np.random.default_rng(seed).random(count))
    return torch.from_numpy(np.concatenate(drawn))
