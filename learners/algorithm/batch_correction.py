"""The parts of a correction that depend on the whole batch. Pure functions, except that they sum or gather over ranks.

What always holds: the result depends only on the batch's tokens, however ranks and micro-batches divide them.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from asyncrl.learners.algorithm.corrections import units
from asyncrl.learners.algorithm.loss_tokens import LossTokens


def second_moment_outliers(log_ratio: Tensor, mask: Tensor, upper: float, gather: Callable[[Tensor], Tensor]) -> Tensor:
    """bool [n], the tokens of this rank that are left out of the loss.

    The tokens with the largest squared log-ratios of the batch are left out: as few as needed to bring the mean square
    of the others down to ``upper``. Tokens with equal squares are kept or left out together.

    Args:
        log_ratio: [n], log of proximal over behaviour probability; the proximal policy is the one before the training
            step.
        mask: bool [n], the tokens in the loss.
        upper: bound on the mean square of the tokens that stay.
        gather: concatenates the ranks' tensors, which have the same length.

    Source: M2PO, Zheng et al. 2025, arXiv:2510.01161, as the paper and AReaL describe it. The authors' own program
    looks only at tokens that have moved in the direction of their advantage, and clips them.
    """
    squares = log_ratio.double().square()
    mine = squares[mask]
    longest = int(gather(torch.tensor([len(mine)])).max())
    padded = mine.new_full((longest,), torch.inf)
    padded[: len(mine)] = mine
    everyone = gather(padded)
    ascending = everyone[everyone.isfinite()].sort().values
    # The mean of the k smallest squares grows with k: as many tokens stay as there are means within the bound.
    means = ascending.cumsum(0) / torch.arange(1, len(ascending) + 1)
    kept = int((means <= upper).sum())
    return mask & (squares >= ascending[kept]) if kept < len(ascending) else torch.zeros_like(mask)


def mean_weight(parts: Sequence[tuple[Tensor, LossTokens]], level: str, add: Callable[[Tensor], Tensor]) -> float:
    """The mean weight of the batch's tokens, turns or rows in the loss, whichever ``level`` names; 1 if there are none.

    Args:
        parts: for each of this rank's micro-batches, the bounded weight of each token, and the tokens.
        level: ``token``, ``segment`` (a turn) or ``sequence`` (a row).
        add: sums a tensor over the ranks that divide the batch.

    Source: self-normalised importance sampling, as verl's ``rollout_is_batch_normalize`` does it after truncation.
    """
    total = torch.zeros(2, dtype=torch.float64)
    for weight, tokens in parts:
        segments, of_units, count = units(tokens, level), weight[tokens.mask].double(), int(tokens.mask.sum())
        if segments is not None:
            of_units = segments.means(weight.double(), tokens.mask)
            count = int((segments.sums(tokens.mask.double()) > 0).sum())
        total += torch.tensor([of_units.sum().item(), count], dtype=torch.float64)
    summed, number = add(total).tolist()
    return summed / number if summed > 0 else 1.0
