"""Generalised advantage estimation over packed rows. Pure functions of tensors.

The tensors hold sampled tokens only, end to end: the last token of a turn is followed by the first token of the row's
next turn, whatever a tool wrote in between.
"""

import torch
from torch import Tensor


def discounted_sums(values: Tensor, decay: Tensor) -> Tensor:
    """[n], ``s[t] = values[t] + decay[t] * s[t + 1]``, computed in a logarithmic number of steps.

    Args:
        values: [n].
        decay: [n]; 0 at the last token of a row, which keeps rows apart.
    """
    sums, decay, reach = values.clone(), decay.clone(), 1
    while reach < len(sums):
        # The sum ``reach`` places ahead covers as many values as this one: together they cover twice as many.
        ahead = sums[reach:] * decay[:-reach]
        decay = torch.cat([decay[:-reach] * decay[reach:], decay.new_zeros(reach)])
        sums = torch.cat([sums[:-reach] + ahead, sums[-reach:]])
        reach *= 2
    return sums


def generalised_advantages(
    values: Tensor, rewards: Tensor, row: Tensor, discount: float, lambdas: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the advantages, and the returns that the critic is to learn, both [n].

    ``A[t] = delta[t] + discount * lambda * A[t + 1]`` with ``delta[t] = r[t] + discount * V[t + 1] - V[t]``. The value
    after the last token of a row is 0: an episode that was cut off counts as ended.

    Args:
        values: [n], the critic's value of the state in which each token was sampled.
        rewards: [n], the reward that each token earned.
        row: int64 [n], the row of each token, not decreasing.
        lambdas: [n], all equal, or from :func:`length_adaptive_lambdas`.

    Source: Schulman et al. 2016, arXiv:1506.02438.
    """
    goes_on = torch.cat([row[1:] == row[:-1], row.new_zeros(min(1, len(row)), dtype=torch.bool)])
    following = torch.where(goes_on, torch.roll(values, -1), 0.0)
    deltas = rewards + discount * following - values
    advantages = discounted_sums(deltas, discount * lambdas * goes_on)
    return advantages, advantages + values


def length_adaptive_lambdas(tokens: Tensor, alpha: float) -> Tensor:
    """float32 [n], ``1 - 1 / (alpha * tokens)``, at least 0: the longer the row, the further back its reward has
    effect.

    Args:
        tokens: [n], the number of sampled tokens in each token's row.

    Source: Yue et al. 2025, arXiv:2504.05118.
    """
    return (1.0 - 1.0 / (alpha * tokens.double())).clamp(min=0.0).float()
