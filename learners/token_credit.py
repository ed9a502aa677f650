"""Credit with a critic: of each token of a micro-batch its advantage, and the return that the critic learns. Pure functions.

Rows are whole within a micro-batch, so that nothing here depends on how a batch is divided but the normalisation, which is over
the batch by its sums.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from asyncrl.core.batch import RowRecord
from asyncrl.core.recipe.algorithm import EpisodeCredit, GaeAdvantage, TurnCredit
from asyncrl.core.spread import has_spread
from learners.gae import generalised_advantages, length_adaptive_lambdas
from learners.kl import kl_in_reward
from learners.micro_batch import MicroBatch


def token_credit(
    part: MicroBatch,
    records: Sequence[RowRecord],
    values: Tensor,
    divergences: Tensor,
    kl_coefficient: float,
    advantage: GaeAdvantage,
    credit: EpisodeCredit | TurnCredit,
) -> tuple[Tensor, Tensor]:
    """Advantages, not yet normalised (float64 [n]: what differs by rounding is to be told from what differs), and returns
    (float32 [n]). What tools wrote lies between two sampled tokens as if it were not there.

    Args:
        records: of the micro-batch's rows, in order; each turn's reward comes from here where ``credit`` is by turn, and else the
            final reward, which the row's last token brings.
        values: [n], of the state in which each token was sampled.
        divergences: [n], of each token from the reference, taken off its reward ``kl_coefficient`` times.

    Raises:
        ValueError: if turns are to be credited and a row's record has no turn rewards.
    """
    by_turn = isinstance(credit, TurnCredit)
    ends = _last_tokens(part.turn if by_turn else part.row)
    earned: list[float] = []
    for record in records:
        if by_turn and not record.turn_rewards:
            raise ValueError(f"sample {record.sample_index} of group {record.group_id} has no turn rewards to give credit for")
        earned += record.turn_rewards if by_turn else [record.reward]
    # A row of which nothing was sampled has no token to reward.
    present = torch.unique(part.turn if by_turn else part.row)
    rewards = kl_in_reward(ends, torch.tensor(earned, dtype=torch.float64)[present], divergences.double(), kl_coefficient)
    lambdas = torch.full_like(rewards, advantage.lam)
    if advantage.length_adaptive_alpha:
        tokens = torch.bincount(part.row, minlength=part.rows)[part.row]
        lambdas = length_adaptive_lambdas(tokens, advantage.length_adaptive_alpha).double()
    advantages, returns = generalised_advantages(values.double(), rewards, part.row, advantage.discount, lambdas)
    return advantages, returns.float()


def normalised(parts: Sequence[MicroBatch], add: Callable[[Tensor], Tensor], gather: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """float32, the advantages of each part less their mean and over their (population's) standard deviation, over the batch's
    tokens in the loss; 0 if those have no spread.

    Args:
        add: the sum of a tensor over the ranks that divide the batch.
        gather: their tensors end to end, each of the same length.
    """
    chosen = torch.cat([torch.empty(0), *(part.advantages[part.mask] for part in parts)]).double()
    count, total = add(torch.stack([torch.tensor(float(len(chosen)), dtype=torch.float64), chosen.sum()])).unbind()
    mean = total / count
    deviation = (add((chosen - mean).square().sum()) / count).sqrt()
    # Beyond which the others' extremes go where this rank has no token.
    nothing = torch.tensor([-torch.inf], dtype=torch.float64)
    highest, minus_lowest = (gather(torch.cat([nothing, values]).max().reshape(1)).max().item() for values in (chosen, -chosen))
    spread = has_spread((-minus_lowest, highest))
    scale = 1.0 / deviation if spread else 0.0
    return [((part.advantages.double() - mean) * scale).float() for part in parts]


def _last_tokens(index: Tensor) -> Tensor:
    """int64, the last token of each stretch of equal numbers."""
    goes_on = torch.zeros(len(index), dtype=torch.bool)
    goes_on[:-1] = index[1:] == index[:-1]
    return (~goes_on).nonzero().flatten()
