"""The advantages of each row of a batch. They depend only on the batch's records, and so are the same on every rank.

Episodes are compared, not rows: an advantage is computed once for each reward of an episode, and all rows that have this reward
have it. A reward is the episode's or, where a role has one of its own, that role's, which is compared with the same role's in the
other episodes of the group.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from asyncrl.core.batch import Batch, BatchEpisode
from asyncrl.core.episode_records import compared_rewards
from asyncrl.core.ids import GroupId
from asyncrl.core.recipe.advantage import AdvantageConfig, GdpoAdvantageConfig, RemaxAdvantageConfig
from asyncrl.core.recipe.algorithm import AlgorithmConfig, EpisodeCreditConfig, OverlongPenaltyConfig, TurnCreditConfig
from asyncrl.core.recipe.custom import CustomAdvantageConfig
from asyncrl.learners.algorithm.advantages import Returns, advantages, against_greedy, decoupled_advantages
from asyncrl.learners.algorithm.credit import turn_groups, turn_places, turn_returns
from asyncrl.learners.algorithm.overlong import overlong_penalties
from asyncrl.learners.custom.calls import call_advantage, loaded


class Compared(NamedTuple):
    """One reward of an episode, as it is compared.

    Attributes:
        episode: the place of the episode in the batch.
        role: whose reward it is; None if it is the episode's.
        among: the number of the set of rewards that it is compared within, counted from 0.
        reward: the reward.
        rows: the places in ``Batch.rows`` of the rows that have it; none in a greedy episode.
    """

    episode: int
    role: str | None
    among: int
    reward: float
    rows: tuple[int, ...]


def compared(batch: Batch) -> list[Compared]:
    """List the rewards that are compared, in the order of the episodes."""
    rows_of: dict[tuple[int, str | None], list[int]] = {}
    for place, row in enumerate(batch.rows):
        rows_of.setdefault((row.episode, _whose(batch.episodes[row.episode], row.role)), []).append(place)
    numbers: dict[tuple[GroupId, str | None], int] = {}
    found: list[Compared] = []
    for group_id, members in groupby(range(len(batch.episodes)), lambda place: batch.episodes[place].group_id):
        places = list(members)
        rewards = compared_rewards([batch.episodes[place] for place in places])
        for number, place in enumerate(places):
            for role, column in rewards.items():
                if number in column:
                    among = numbers.setdefault((group_id, role), len(numbers))
                    found.append(Compared(place, role, among, column[number], tuple(rows_of.get((place, role), ()))))
    return found


def row_advantages(batch: Batch, config: AlgorithmConfig) -> list[list[float]]:
    """Compute the advantages of each row of the batch: one for the whole row, or one for each turn.

    Raises:
        ValueError: if turns are credited and a record has no turn rewards, or an episode has several trajectories; or if several
            rewards are compared and a record has a different number of them.
    """
    match config.credit:
        case EpisodeCreditConfig():
            of_rows: list[list[float]] = [[] for _ in batch.rows]
            every = compared(batch)
            for one, advantage in zip(every, _episode_advantages(batch, every, config), strict=True):
                for row in one.rows:
                    of_rows[row] = [advantage]
            return of_rows
        case TurnCreditConfig(discount=discount):
            return _turn_advantages(batch, config, discount)


def with_penalties(batch: Batch, penalties: Sequence[float]) -> Batch:
    """Return the batch with a penalty subtracted from each of the :func:`compared` rewards."""
    episodes = list(batch.episodes)
    for one, penalty in zip(compared(batch), penalties, strict=True):
        episode = episodes[one.episode]
        if one.role is None:
            episodes[one.episode] = msgspec.structs.replace(episode, reward=episode.reward - penalty)
        else:
            changed = {**episode.role_rewards, one.role: episode.role_rewards[one.role] - penalty}
            episodes[one.episode] = msgspec.structs.replace(episode, role_rewards=changed)
    return msgspec.structs.replace(batch, episodes=tuple(episodes))


def with_turn_penalties(batch: Batch, penalties: Sequence[Sequence[float]]) -> Batch:
    """Return the batch with penalties subtracted from the rewards of the turns: for each row, one for each of its turns."""
    _refuse_several(batch)
    episodes = list(batch.episodes)
    for row, of_row in zip(batch.rows, penalties, strict=True):
        (record,) = episodes[row.episode].trajectories
        less = tuple(reward - penalty for reward, penalty in zip(record.turn_rewards, of_row, strict=True))
        trajectories = (msgspec.structs.replace(record, turn_rewards=less),)
        episodes[row.episode] = msgspec.structs.replace(episodes[row.episode], trajectories=trajectories)
    return msgspec.structs.replace(batch, episodes=tuple(episodes))


def with_overlong_penalty(batch: Batch, config: OverlongPenaltyConfig, credit: EpisodeCreditConfig | TurnCreditConfig) -> Batch:
    """Return the batch with the penalty for long episodes subtracted from the rewards that ``credit`` uses: the episode's,
    for the longest trajectory that has this reward, or the last turn's."""
    if isinstance(credit, EpisodeCreditConfig):
        longest = [_longest(batch.episodes[one.episode], one.role) for one in compared(batch)]
        return with_penalties(batch, overlong_penalties(torch.tensor(longest), config).tolist())
    of_rows = overlong_penalties(torch.tensor([row.length for row in batch.rows]), config).tolist()
    return with_turn_penalties(
        batch, [[*[0.0] * (len(row.turn_rewards) - 1), penalty] for row, penalty in zip(batch.rows, of_rows, strict=True)]
    )


def _whose(episode: BatchEpisode, role: str) -> str | None:
    """Whose reward a trajectory of ``role`` has: its role's, or, as None, that of its episode."""
    return role if role in episode.role_rewards else None


def _longest(episode: BatchEpisode, whose: str | None) -> int:
    return max((each.length for each in episode.trajectories if _whose(episode, each.role) == whose), default=0)


def _episode_advantages(batch: Batch, every: Sequence[Compared], config: AlgorithmConfig) -> list[float]:
    """The advantage of each of the compared rewards."""
    rows = batch.rows
    among = torch.tensor([one.among for one in every], dtype=torch.int64)
    tokens = torch.tensor([sum(rows[row].loss_tokens for row in one.rows) for one in every], dtype=torch.int64)
    if isinstance(config.advantage, GdpoAdvantageConfig):
        weights = [config.advantage.rewards[name] for name in config.reward_names]
        several = _named_rewards(batch, every, config.reward_names)
        return decoupled_advantages(several, torch.tensor(weights, dtype=torch.float64), among, tokens).tolist()
    rewards = torch.tensor([one.reward for one in every], dtype=torch.float64)
    if isinstance(config.advantage, RemaxAdvantageConfig):
        return against_greedy(rewards, _greedy_rewards(batch, every)).tolist()
    named = _named_rewards(batch, every, config.reward_names) if config.reward_names else None
    return _advantages(Returns(rewards, among, tokens, named), config.advantage).tolist()


def _advantages(returns: Returns, config: AdvantageConfig) -> Tensor:
    return call_advantage(loaded(config), returns) if isinstance(config, CustomAdvantageConfig) else advantages(returns, config)


def _greedy_rewards(batch: Batch, every: Sequence[Compared]) -> Tensor:
    """float64, what each reward is in the group's greedy episode. If a crash destroyed that, the reward itself, which makes its
    advantage 0."""
    greedy = {one.among: one.reward for one in every if batch.episodes[one.episode].greedy}
    return torch.tensor([greedy.get(one.among, one.reward) for one in every], dtype=torch.float64)


def _named_rewards(batch: Batch, every: Sequence[Compared], names: Sequence[str]) -> Tensor:
    """The rewards with these names of the episode of each compared one, float64 [compared, k]."""
    for episode in batch.episodes:
        if len(episode.rewards) != len(names):
            name = f"sample {episode.sample_index} of group {episode.group_id}"
            raise ValueError(f"{name} has {len(episode.rewards)} rewards, but algorithm.advantage.rewards names {names}")
    return torch.tensor([batch.episodes[one.episode].rewards for one in every], dtype=torch.float64)


def _refuse_several(batch: Batch) -> None:
    for episode in batch.episodes:
        if len(episode.trajectories) > 1:
            raise ValueError(
                f"sample {episode.sample_index} of group {episode.group_id} has {len(episode.trajectories)} trajectories, whose "
                "turns have no common order for algorithm.credit of kind turn; set algorithm.credit.kind=episode"
            )


def _turn_advantages(batch: Batch, config: AlgorithmConfig, discount: float) -> list[list[float]]:
    _refuse_several(batch)
    for record in batch.rows:
        if not record.turn_rewards:
            raise ValueError(
                f"sample {record.sample_index} of group {record.group_id} has no turn rewards, which algorithm.credit of kind "
                "turn needs"
            )
    numbers = {group_id: number for number, group_id in enumerate(dict.fromkeys(row.group_id for row in batch.rows))}
    groups = torch.tensor([numbers[row.group_id] for row in batch.rows])
    counts = [len(record.turn_rewards) for record in batch.rows]
    row = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    rewards = torch.tensor([reward for record in batch.rows for reward in record.turn_rewards], dtype=torch.float64)
    returns = Returns(
        turn_returns(rewards, row, discount),
        turn_groups(groups[row], turn_places(row)),
        torch.ones(len(row), dtype=torch.int64),
    )
    return [part.tolist() for part in _advantages(returns, config.advantage).split(counts)]
