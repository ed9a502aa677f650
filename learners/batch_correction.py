"""What a correction must know of the whole batch before the step. Pure functions but for what they ask of the other ranks.

What always holds: the answer is a function of the batch's tokens, however ranks and micro-batches divide them.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from learners.corrections import units
from learners.loss_tokens import LossTokens


def second_moment_outliers(log_ratio: Tensor, mask: Tensor, upper: float, gather: Callable[[Tensor], Tensor]) -> Tensor:
    """bool [n], the tokens of this rank that are left out so that the mean of the other tokens' squared log-ratios is at most
    ``upper``: of the batch those with the largest squares, and as few as will do. Tokens of equal squares stay or go together.

    Args:
        log_ratio: [n], of this rank's tokens, the policy before the step over the behaviour policy.
        mask: bool [n], those in the loss.
        gather: the ranks' tensors end to end, each of the same length.

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
    """The mean of the batch's weights over what they are of: tokens, turns or rows with a token in the loss; 1 if there are none.

    Args:
        parts: this rank's micro-batches, and the weight of each token, bounded and not yet normalised.
        level: ``token``, ``segment`` or ``sequence``.
        add: the sum of a tensor over the ranks that divide the batch.

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
