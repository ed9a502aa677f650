"""What a correction has to know about the whole batch before the step. Pure functions, but for the sums over other ranks.

What always holds: the result is a function of the batch's tokens, however ranks and micro-batches divide them.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from learners.corrections import units
from learners.loss_tokens import LossTokens


def second_moment_outliers(log_ratio: Tensor, mask: Tensor, upper: float, gather: Callable[[Tensor], Tensor]) -> Tensor:
    """bool [n], the tokens of this rank that are left out.

    Those with the largest squared log-ratios of the batch are left out, as few as bring the mean of the others down to ``upper``.
    Tokens with equal squares stay or go together.

    Args:
        log_ratio: [n], log-ratios of the policy before the step to the behaviour policy.
        mask: bool [n], the tokens in the loss.
        gather: concatenates the ranks' tensors, which have the same length.

    Source: M2PO, Zheng et al. 2025, arXiv:2510.01161, as the paper and AReaL describe it. The authors' own program looks only at
    tokens that have moved the way their advantage pushes, and clips them.
    """
    squares = log_ratio.double().square()
    mine = squares[mask]
    longest = int(gather(torch.tensor([len(mine)])).max())
    padded = mine.new_full((longest,), torch.inf)
    padded[: len(mine)] = mine
    everyone = gather(padded)
    ascending = everyone[everyone.isfinite()].sort().values
    # The mean of the smallest grows with their number.
    means = ascending.cumsum(0) / torch.arange(1, len(ascending) + 1)
    kept = int((means <= upper).sum())
    return mask & (squares >= ascending[kept]) if kept < len(ascending) else torch.zeros_like(mask)


def mean_weight(parts: Sequence[tuple[Tensor, LossTokens]], level: str, add: Callable[[Tensor], Tensor]) -> float:
    """The mean weight of the batch's tokens, turns or rows, whichever ``level`` weighs, in the loss; 1 if there are none.

    Args:
        parts: for each of this rank's micro-batches the bounded weight of each token, and the tokens.
        level: ``token``, ``segment`` or ``sequence``.
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
