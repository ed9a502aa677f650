"""Credit with a critic: the advantage of each token, and the return that the critic is to learn. Pure functions.

Rows are whole within a micro-batch, so nothing here depends on how a batch is divided. Only the normalisation covers
the whole batch, by sums over the ranks.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from asyncrl.core.batch import BatchRow
from asyncrl.core.recipe.advantage import GaeAdvantageConfig
from asyncrl.core.recipe.algorithm import EpisodeCreditConfig, TurnCreditConfig
from asyncrl.core.reward_spread import has_spread
from asyncrl.learners.algorithm.gae import generalised_advantages, length_adaptive_lambdas
from asyncrl.learners.algorithm.kl import kl_in_reward
from asyncrl.learners.algorithm.loss_tokens import LossTokens


def token_credit(
    part: LossTokens,
    records: Sequence[BatchRow],
    values: Tensor,
    divergences: Tensor,
    kl_coefficient: float,
    advantage: GaeAdvantageConfig,
    credit: EpisodeCreditConfig | TurnCreditConfig,
) -> tuple[Tensor, Tensor]:
    """Compute the advantage of each token (float64 [n], not yet normalised) and its return (float32 [n]). What tools
    wrote between sampled tokens is ignored.

    The advantages are float64 so that real differences can be told from differences by rounding.

    Args:
        part: the micro-batch.
        records: records of the micro-batch's rows, in order. They hold the rewards. If ``credit`` is by turn, the last
            token of each turn earns that turn's reward; otherwise the last token of each row earns the final reward of its role.
        values: [n], the critic's value of the state in which each token was sampled.
        divergences: [n], divergence of each token from the reference.
        kl_coefficient: ``kl_coefficient`` times the divergence is subtracted from each token's reward.
        advantage: discount and lambda.
        credit: by episode or by turn.

    Raises:
        ValueError: if turns are credited and a record has no turn rewards.
    """
    by_turn = isinstance(credit, TurnCreditConfig)
    units = (part.turns if by_turn else part.rows).index
    ends = _last_tokens(units)
    earned: list[float] = []
    for record in records:
        if by_turn and not record.turn_rewards:
            raise ValueError(
                f"sample {record.sample_index} of group {record.group_id} has no turn rewards, which algorithm.credit of kind "
                "turn needs"
            )
        earned += record.turn_rewards if by_turn else [record.reward]
    # A row without a sampled token has nothing to reward.
    present = torch.unique(units)
    rewards = kl_in_reward(ends, torch.tensor(earned, dtype=torch.float64)[present], divergences.double(), kl_coefficient)
    lambdas = torch.full_like(rewards, advantage.lam)
    if advantage.length_adaptive_alpha:
        tokens = torch.bincount(part.rows.index)[part.rows.index]
        lambdas = length_adaptive_lambdas(tokens, advantage.length_adaptive_alpha).double()
    advantages, returns = generalised_advantages(values.double(), rewards, part.rows.index, advantage.discount, lambdas)
    return advantages, returns.float()


def normalised(parts: Sequence[LossTokens], add: Callable[[Tensor], Tensor], gather: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Normalise the advantages of each part, float32: subtract their mean and divide by their standard deviation (of
    the population), both over the batch's tokens in the loss; 0 if those have no spread.

    Args:
        parts: this rank's micro-batches.
        add: sums a tensor over the ranks that divide the batch.
        gather: concatenates the ranks' tensors, which have the same length.
    """
    chosen = torch.cat([torch.empty(0), *(part.advantages[part.mask] for part in parts)]).double()
    count, total = add(torch.stack([torch.tensor(float(len(chosen)), dtype=torch.float64), chosen.sum()])).unbind()
    mean = total / count
    deviation = (add((chosen - mean).square().sum()) / count).sqrt()
    # A placeholder if this rank has no token: any extreme of another rank exceeds it.
    nothing = torch.tensor([-torch.inf], dtype=torch.float64)
    highest, minus_lowest = (gather(torch.cat([nothing, values]).max().reshape(1)).max().item() for values in (chosen, -chosen))
    spread = has_spread((-minus_lowest, highest))
    scale = 1.0 / deviation if spread else 0.0
    return [((part.advantages.double() - mean) * scale).float() for part in parts]


def _last_tokens(index: Tensor) -> Tensor:
    """int64, the index of the last token of each run of equal numbers."""
    goes_on = torch.zeros(len(index), dtype=torch.bool)
    goes_on[:-1] = index[1:] == index[:-1]
    return (~goes_on).nonzero().flatten()
