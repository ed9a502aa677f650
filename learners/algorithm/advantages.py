"""Advantages: how much better an episode, or a turn, did than expected. Pure functions of tensors, in float64.

A group without spread (it has one member, or equal returns) says nothing about what to prefer. Where a formula only
compares within groups, its advantage is exactly 0. Two kinds normalise over the batch afterwards (reinforce_plus_plus
with the group baseline, and gdpo); there, such a group gets minus the batch's mean, divided by the batch's deviation.
Where a formula divides by the batch's deviation, a batch without spread has advantage 0. Values that differ only by
rounding have no spread, see :mod:`asyncrl.core.reward_spread`. Standard deviations are those of the population, and no epsilon
is added to them.
"""

import math

import msgspec
import torch
from torch import Tensor

from asyncrl.core.recipe.advantage import (
    AdvantageConfig,
    BestOfGroupAdvantageConfig,
    GaeAdvantageConfig,
    GdpoAdvantageConfig,
    GpgAdvantageConfig,
    GrpoAdvantageConfig,
    MaxRlAdvantageConfig,
    NoAdvantageConfig,
    OpoAdvantageConfig,
    PassAtKAdvantageConfig,
    ReinforcePlusPlusAdvantageConfig,
    RemaxAdvantageConfig,
    RlooAdvantageConfig,
)
from asyncrl.core.recipe.custom import CustomAdvantageConfig
from asyncrl.core.reward_spread import has_spread, reaches
from asyncrl.learners.algorithm.segments import Segments


class Returns(msgspec.Struct, frozen=True):
    """The returns of the ``u`` episodes, or turns, that are compared.

    Attributes:
        values: [u], the reward of each episode, or the discounted sum of the rewards of each turn and all later turns.
        group: int64 [u], the number of the group that each is compared within, counted from 0.
        tokens: int64 [u], the number of tokens of each episode that may enter the loss; 1 for each turn.
        rewards: [u, k], the rewards that ``algorithm.advantage.rewards`` of kind custom names, in that order; None if there are
            none.
    """

    values: Tensor
    group: Tensor
    tokens: Tensor
    rewards: Tensor | None = None


def advantages(returns: Returns, config: AdvantageConfig) -> Tensor:
    """Compute the advantages of the recipe's kind, float32 [u]. The function of each kind states its formula and
    source.

    Raises:
        ValueError: for kind gae, which needs a critic's values (see :mod:`.token_credit`), gdpo, which needs several
            rewards (see :func:`decoupled_advantages`), remax, which needs a greedy episode (see
            :func:`against_greedy`), and custom (see :mod:`asyncrl.learners.custom.calls`).
    """
    groups = _Groups(returns)
    match config:
        case GrpoAdvantageConfig(normalize=normalize):
            result = groups.standardised() if normalize == "mean_std" else groups.centred()
        case RlooAdvantageConfig():
            result = _leave_one_out(groups)
        case ReinforcePlusPlusAdvantageConfig(baseline=baseline):
            result = batch_normalised(groups.centred() if baseline == "group" else groups.values, returns.tokens)
        case OpoAdvantageConfig():
            result = _length_weighted(groups)
        case GpgAdvantageConfig():
            result = _scaled_for_groups_without_spread(groups)
        case PassAtKAdvantageConfig(k=k, success=success):
            result = pass_at_k_advantages(returns.values, returns.group, k, success)
        case MaxRlAdvantageConfig(success=success):
            result = _over_the_rate_of_success(groups, success)
        case BestOfGroupAdvantageConfig():
            result = _lead_over_the_others(groups)
        case NoAdvantageConfig():
            result = torch.zeros_like(groups.values)
        case GaeAdvantageConfig():
            raise ValueError("advantages of kind gae need a critic's values")
        case GdpoAdvantageConfig():
            raise ValueError("advantages of kind gdpo need several rewards")
        case RemaxAdvantageConfig():
            raise ValueError("advantages of kind remax need a greedy episode's reward")
        case CustomAdvantageConfig():
            raise ValueError("advantages of kind custom are computed by a function of the user's own")
    return result.float()


def against_greedy(values: Tensor, greedy: Tensor) -> Tensor:
    """float32 [u], each reward minus the reward of the greedy episode of the same task (ReMax, Li et al. 2023,
    arXiv:2310.10505)."""
    return (values.double() - greedy.double()).float()


def decoupled_advantages(rewards: Tensor, weights: Tensor, group: Tensor, tokens: Tensor) -> Tensor:
    """Combine several rewards of each episode into one advantage, float32 [u].

    Each reward is standardised within its group. The weighted sum of the results is then standardised over the tokens
    of the batch. Standardising the sum of the rewards instead gives different combinations of rewards the same
    advantage. A group whose rewards are all equal contributes 0 to the sum, so its advantage is minus the batch's mean,
    divided by the batch's deviation.

    Args:
        rewards: [u, k], the rewards of each episode.
        weights: [k], the weight of each reward.
        group, tokens: as in :class:`Returns`.

    Source: GDPO, Liu et al. 2026, arXiv:2601.05242.
    """
    columns = [_Groups(Returns(column, group, tokens)).standardised() for column in rewards.double().unbind(1)]
    return batch_normalised(torch.stack(columns, 1) @ weights.double(), tokens).float()


def batch_normalised(values: Tensor, tokens: Tensor) -> Tensor:
    """float64 [u], ``values`` minus their mean, divided by their standard deviation, both over all tokens of the batch
    (Hu et al. 2025, arXiv:2501.03262); 0 if the values have no spread."""
    values, share = values.double(), tokens.double() / tokens.sum().clamp(min=1)
    trained = values[tokens > 0]
    if not len(trained) or not has_spread((trained.min().item(), trained.max().item())):
        return torch.zeros_like(values)
    centred = values - (share * values).sum()
    return centred / (share * centred.square()).sum().sqrt()


def pass_at_k_advantages(values: Tensor, group: Tensor, k: int, success: float) -> Tensor:
    """float64 [u], the mean advantage of the sets of ``k`` episodes that each episode is in. A set's reward is whether
    at least one of its episodes succeeds.

    Take a group of ``n`` episodes with ``f`` failures. Over its sets, the reward has mean ``m = 1 - C(f, k) / C(n, k)``
    and deviation ``s = sqrt(m * (1 - m))``. A success gets ``(1 - m) / s``, a failure
    ``(1 - m - C(f - 1, k - 1) / C(n - 1, k - 1)) / s``. Advantages are 0 in groups smaller than ``k``, and where every
    set succeeds or none does.

    Source: Chen et al. 2025, arXiv:2508.10751.
    """
    succeeded = _succeeded(values, success)
    result = torch.zeros(len(values), dtype=torch.float64)
    counts, failures = torch.bincount(group).tolist(), torch.bincount(group, weights=(~succeeded).double()).tolist()
    for number, (n, f) in enumerate(zip(counts, map(int, failures), strict=True)):
        mean = 1.0 - math.comb(f, k) / math.comb(n, k) if n >= k else 0.0
        if 0.0 < mean < 1.0:
            deviation = math.sqrt(mean * (1.0 - mean))
            failed = (1.0 - mean - math.comb(f - 1, k - 1) / math.comb(n - 1, k - 1)) / deviation
            result[(group == number) & succeeded] = (1.0 - mean) / deviation
            result[(group == number) & ~succeeded] = failed
    return result


def _succeeded(values: Tensor, success: float) -> Tensor:
    return torch.tensor([reaches(value, success) for value in values.tolist()], dtype=torch.bool)


def _over_the_rate_of_success(groups: "_Groups", success: float) -> Tensor:
    """``(s - m) / m``: ``s`` is 1 for a success and 0 for a failure, and ``m`` is its mean over the group; 0 if no
    episode succeeds.

    The gradient is the mean score of the successes minus the mean score of all episodes. It estimates the gradient of
    ``log m`` instead of ``m``, as far as ``n`` episodes can tell (MaxRL, Tajwar, Zeng et al. 2026, arXiv:2602.02710,
    algorithm 1; for binary rewards).
    """
    succeeded = _succeeded(groups.values, success).double()
    rate = (groups.segments.sums(succeeded) / groups.size)[groups.of]
    return torch.where(rate > 0, (succeeded - rate) / torch.where(rate > 0, rate, 1.0), 0.0)


def _lead_over_the_others(groups: "_Groups") -> Tensor:
    """The group's best reward minus the second best, for the one episode that is best; 0 for all other episodes.

    This is the leave-one-out estimate of the gradient of the expected best reward, in as many tries as the group has
    episodes (Tang et al. 2025, arXiv:2503.19595).
    """
    result = torch.zeros_like(groups.values)
    for number in range(groups.segments.count):
        (members,) = torch.where(groups.of == number)
        best = groups.values[members].topk(min(2, len(members)))
        if len(members) > 1 and has_spread(best.values.tolist()):
            result[members[best.indices[0]]] = best.values[0] - best.values[1]
    return result


def _leave_one_out(groups: "_Groups") -> Tensor:
    """Each value minus the mean of the other values of the group (Ahmadian et al. 2024, arXiv:2402.14740)."""
    size = groups.size[groups.of]
    return groups.centred() * size / (size - 1).clamp(min=1)


def _length_weighted(groups: "_Groups") -> Tensor:
    """Each value minus the group's mean, which is weighted by tokens (Hao et al. 2025, arXiv:2505.23585)."""
    tokens = groups.tokens
    baseline = groups.segments.sums(tokens * groups.values) / groups.segments.sums(tokens).clamp(min=1)
    return groups.where_varied(groups.values - baseline[groups.of])


def _scaled_for_groups_without_spread(groups: "_Groups") -> Tensor:
    """Each value minus the group's mean, times the number of groups divided by the number of groups with spread. Groups
    without spread have no gradient and would dilute the batch's (Chu et al. 2025, arXiv:2504.02546)."""
    return groups.centred() * len(groups.varies) / groups.varies.sum().clamp(min=1)


class _Groups:
    """The statistics of each group of returns."""

    def __init__(self, returns: Returns) -> None:
        self.values, self.of, self.tokens = returns.values.double(), returns.group, returns.tokens.double()
        self.segments = Segments(self.of, int(self.of.max()) + 1 if len(self.of) else 0)
        everyone = torch.ones_like(self.of, dtype=torch.bool)
        self.size = self.segments.sums(everyone.double())
        highest, lowest = self.segments.maxima(self.values, everyone), -self.segments.maxima(-self.values, everyone)
        extremes = zip(lowest.tolist(), highest.tolist(), strict=True)
        self.varies = torch.tensor([has_spread(pair) for pair in extremes], dtype=torch.bool)

    def where_varied(self, result: Tensor) -> Tensor:
        return torch.where(self.varies[self.of], result, 0.0)

    def centred(self) -> Tensor:
        return self.where_varied(self.values - self._means(self.values))

    def standardised(self) -> Tensor:
        centred = self.values - self._means(self.values)
        deviation = self._means(centred.square()).sqrt()
        return self.where_varied(centred / torch.where(self.varies[self.of], deviation, 1.0))

    def _means(self, values: Tensor) -> Tensor:
        return (self.segments.sums(values) / self.size)[self.of]
