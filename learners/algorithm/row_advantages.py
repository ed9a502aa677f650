"""The advantages of each row of a batch. They depend only on the batch's records, and so are the same on every rank."""

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from asyncrl.core.batch import Batch
from asyncrl.core.recipe.advantage import AdvantageConfig, GdpoAdvantageConfig, RemaxAdvantageConfig
from asyncrl.core.recipe.algorithm import AlgorithmConfig, EpisodeCreditConfig, OverlongPenaltyConfig, TurnCreditConfig
from asyncrl.core.recipe.custom import CustomAdvantageConfig
from learners.algorithm.advantages import Returns, advantages, against_greedy, decoupled_advantages
from learners.algorithm.credit import turn_groups, turn_places, turn_returns
from learners.algorithm.overlong import overlong_penalties
from learners.custom.calls import call_advantage, loaded


def row_advantages(batch: Batch, config: AlgorithmConfig) -> list[list[float]]:
    """Compute the advantages of each row of the batch: one for the whole row, or one for each turn.

    Raises:
        ValueError: if turns are credited and a record has no turn rewards; or if several rewards are compared and a
            record has a different number of them.
    """
    match config.credit:
        case EpisodeCreditConfig():
            return [[advantage] for advantage in _episode_advantages(batch, config)]
        case TurnCreditConfig(discount=discount):
            return _turn_advantages(batch, config, discount)


def with_penalties(batch: Batch, penalties: list[list[float]], credit: EpisodeCreditConfig | TurnCreditConfig) -> Batch:
    """Return the batch with ``penalties`` subtracted from the rewards that ``credit`` uses: one penalty for each row,
    or one for each turn."""
    if isinstance(credit, EpisodeCreditConfig):
        rows = [msgspec.structs.replace(row, reward=row.reward - one) for row, (one,) in zip(batch.rows, penalties, strict=True)]
    else:
        rows = [
            msgspec.structs.replace(row, turn_rewards=tuple(r - p for r, p in zip(row.turn_rewards, of_row, strict=True)))
            for row, of_row in zip(batch.rows, penalties, strict=True)
        ]
    return msgspec.structs.replace(batch, rows=tuple(rows))


def with_overlong_penalty(batch: Batch, config: OverlongPenaltyConfig, credit: EpisodeCreditConfig | TurnCreditConfig) -> Batch:
    """Return the batch with the penalty for long rows subtracted from the rewards that ``credit`` uses: the row's, or
    its last turn's."""
    by_row = isinstance(credit, EpisodeCreditConfig)
    of_rows = overlong_penalties(torch.tensor([row.length for row in batch.rows]), config).tolist()
    penalties = [
        [penalty] if by_row else [*[0.0] * (len(row.turn_rewards) - 1), penalty]
        for row, penalty in zip(batch.rows, of_rows, strict=True)
    ]
    return with_penalties(batch, penalties, credit)


def _groups(batch: Batch) -> list[int]:
    number = {group: index for index, group in enumerate(dict.fromkeys(row.group_id for row in batch.rows))}
    return [number[row.group_id] for row in batch.rows]


def _episode_advantages(batch: Batch, config: AlgorithmConfig) -> list[float]:
    group, tokens = torch.tensor(_groups(batch)), torch.tensor([row.loss_tokens for row in batch.rows])
    if isinstance(config.advantage, GdpoAdvantageConfig):
        weights = [config.advantage.rewards[name] for name in config.reward_names]
        several = _named_rewards(batch, config.reward_names)
        return decoupled_advantages(several, torch.tensor(weights, dtype=torch.float64), group, tokens).tolist()
    rewards = torch.tensor([row.reward for row in batch.rows], dtype=torch.float64)
    if isinstance(config.advantage, RemaxAdvantageConfig):
        return against_greedy(rewards, _greedy_rewards(batch)).tolist()
    named = _named_rewards(batch, config.reward_names) if config.reward_names else None
    return _advantages(Returns(rewards, group, tokens, named), config.advantage).tolist()


def _advantages(returns: Returns, config: AdvantageConfig) -> Tensor:
    return call_advantage(loaded(config), returns) if isinstance(config, CustomAdvantageConfig) else advantages(returns, config)


def _greedy_rewards(batch: Batch) -> Tensor:
    """float64 [rows], the reward of each row's greedy episode. If a crash destroyed that, the row's own reward, which
    makes its advantage 0."""
    greedy = {row.group_id: row.reward for row in batch.rows if row.greedy}
    return torch.tensor([greedy.get(row.group_id, row.reward) for row in batch.rows], dtype=torch.float64)


def _named_rewards(batch: Batch, names: Sequence[str]) -> Tensor:
    """The rewards with these names, float64 [rows, k]."""
    for row in batch.rows:
        if len(row.rewards) != len(names):
            name = f"sample {row.sample_index} of group {row.group_id}"
            raise ValueError(f"{name} has {len(row.rewards)} rewards, but algorithm.advantage.rewards names {names}")
    return torch.tensor([row.rewards for row in batch.rows], dtype=torch.float64)


def _turn_advantages(batch: Batch, config: AlgorithmConfig, discount: float) -> list[list[float]]:
    for record in batch.rows:
        if not record.turn_rewards:
            raise ValueError(
                f"sample {record.sample_index} of group {record.group_id} has no turn rewards, which algorithm.credit of kind "
                "turn needs"
            )
    counts = [len(record.turn_rewards) for record in batch.rows]
    row = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    rewards = torch.tensor([reward for record in batch.rows for reward in record.turn_rewards], dtype=torch.float64)
    returns = Returns(
        turn_returns(rewards, row, discount),
        turn_groups(torch.tensor(_groups(batch))[row], turn_places(row)),
        torch.ones(len(row), dtype=torch.int64),
    )
    return [part.tolist() for part in _advantages(returns, config.advantage).split(counts)]
