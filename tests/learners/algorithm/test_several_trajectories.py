"""Episodes of 1, 3 and 7 trajectories: what is compared and counted are episodes, as computed by hand."""

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learner_samples import batch_of, changed, make_several, trajectories_changed

from asyncrl.core.recipe.advantage import (
    GrpoAdvantageConfig,
    OpoAdvantageConfig,
    ReinforcePlusPlusAdvantageConfig,
    RemaxAdvantageConfig,
    RlooAdvantageConfig,
)
from asyncrl.core.recipe.algorithm import (
    AlgorithmConfig,
    ConstantAggregationConfig,
    EpisodeCreditConfig,
    OverlongPenaltyConfig,
    SequenceMeanTokenMeanConfig,
    SequenceMeanTokenSumConfig,
    TokenMeanConfig,
)
from asyncrl.learners.algorithm.aggregation import Sequences, denominator, shares
from asyncrl.learners.algorithm.row_advantages import compared, row_advantages, with_overlong_penalty, with_penalties
from asyncrl.learners.batches.mini_batches import mini_batches

COUNTS = (1, 3, 7)
SHAPES = [(3, 4), (9, 2), (5, 12), (4, 1), (7, 3), (3, 8), (6, 5)]
"""Prompt, and tokens of a turn, of which there are two."""


def sample_batch(roles=("solver",), **fields):
    """Two groups of three episodes, which have 1, 3 and 7 trajectories; roles take turns."""
    random = np.random.default_rng(5)
    episodes = [
        make_several(
            group,
            sample,
            [(roles[part % len(roles)], *SHAPES[(part + sample + group) % 7]) for part in range(count)],
            float(random.integers(-3, 4)) + 0.25 * sample,
            **fields,
        )
        for group in range(2)
        for sample, count in enumerate(COUNTS)
    ]
    return batch_of(episodes)[0]


BATCH = sample_batch()
REWARDS = np.array([each.reward for each in BATCH.episodes]).reshape(2, 3)
TOKENS = np.array([sum(2 * SHAPES[(part + s + g) % 7][1] for part in range(n)) for g in range(2) for s, n in enumerate(COUNTS)])
"""The tokens in the loss of each episode: two turns of each trajectory."""


def of_episodes(advantages, batch=BATCH):
    """The one advantage that all rows of each episode have."""
    found = {}
    for row, (advantage,) in zip(batch.rows, advantages, strict=True):
        found.setdefault(row.episode, set()).add(advantage)
    assert all(len(each) == 1 for each in found.values()), "all rows of an episode have the same"
    return np.array([next(iter(found[place])) for place in sorted(found)])


def rated(advantage, batch=BATCH):
    return of_episodes(row_advantages(batch, AlgorithmConfig(advantage=advantage)), batch)


def test_the_rows_are_all_trajectories_named_by_their_part():
    assert [row.name for row in BATCH.rows] == [(g, s, part) for g in range(2) for s, n in enumerate(COUNTS) for part in range(n)]
    assert [sum(row.loss_tokens for row in BATCH.rows if row.episode == place) for place in range(6)] == TOKENS.tolist()
    assert [each.length for each in BATCH.episodes] == [
        sum(row.length for row in BATCH.rows if row.episode == place) for place in range(6)
    ]


def test_a_group_is_compared_episode_by_episode():
    centred = REWARDS - REWARDS.mean(1, keepdims=True)
    assert rated(GrpoAdvantageConfig(normalize="mean")) == pytest.approx(centred.flatten(), rel=1e-6)
    standardised = centred / REWARDS.std(1, keepdims=True)
    assert rated(GrpoAdvantageConfig()) == pytest.approx(standardised.flatten(), rel=1e-6)
    left_out = REWARDS - (REWARDS.sum(1, keepdims=True) - REWARDS) / 2
    assert rated(RlooAdvantageConfig()) == pytest.approx(left_out.flatten(), rel=1e-6)


def test_tokens_that_weigh_are_those_of_the_whole_episode():
    by_group = TOKENS.reshape(2, 3)
    lengths = (by_group * REWARDS).sum(1, keepdims=True) / by_group.sum(1, keepdims=True)
    assert rated(OpoAdvantageConfig()) == pytest.approx((REWARDS - lengths).flatten(), rel=1e-6)
    centred = (REWARDS - REWARDS.mean(1, keepdims=True)).flatten()
    of_tokens = np.repeat(centred, TOKENS)
    whitened = (centred - of_tokens.mean()) / of_tokens.std()
    assert rated(ReinforcePlusPlusAdvantageConfig(baseline="group")) == pytest.approx(whitened, rel=1e-5)


def test_the_numbers_of_trajectories_change_nothing_that_compares_rewards():
    """The same episodes with one trajectory each have the same advantages, to the bit."""
    alone = changed(BATCH, lambda each: {"trajectories": each.trajectories[:1]})
    for advantage in (GrpoAdvantageConfig(), RlooAdvantageConfig()):
        assert rated(advantage).tolist() == rated(advantage, alone).tolist()


def test_a_greedy_episode_of_several_trajectories_is_a_baseline_and_no_row():
    batch = changed(BATCH, lambda each: {"greedy": each.sample_index == 2})
    assert {row.sample_index for row in batch.rows} == {0, 1}
    expected = (REWARDS - REWARDS[:, 2:])[:, :2].flatten()
    assert rated(RemaxAdvantageConfig(), batch) == pytest.approx(expected, rel=1e-6)


def test_an_episode_loses_for_its_longest_trajectory_once():
    config = OverlongPenaltyConfig(limit=30, ramp=20, penalty=2.0)
    longest = np.array([max(t.length for t in each.trajectories) for each in BATCH.episodes])
    lost = 2.0 * np.clip((longest - 10) / 20, 0, 1)
    assert len(set(lost)) > 1
    reduced = with_overlong_penalty(BATCH, config, EpisodeCreditConfig())
    assert [each.reward for each in reduced.episodes] == pytest.approx(REWARDS.flatten() - lost)


def by_role(**changes):
    """Solvers and critics; critics have a reward of their own in all episodes that have one."""
    batch = sample_batch(roles=("solver", "critic"))
    return changed(batch, lambda each: {"role_rewards": {"critic": float(each.sample_index**2 + each.group_id)}, **changes})


def test_a_reward_by_role_is_compared_within_group_and_role():
    batch = by_role()
    advantages = row_advantages(batch, AlgorithmConfig(advantage=GrpoAdvantageConfig(normalize="mean")))
    for row, (advantage,) in zip(batch.rows, advantages, strict=True):
        # The episodes with one trajectory have no critic; their reward counts in the comparison all the same.
        critics = [each.role_rewards["critic"] for each in batch.episodes if each.group_id == row.group_id]
        mine = {"critic": critics, "solver": REWARDS[row.group_id].tolist()}[row.role]
        assert advantage == pytest.approx(mine[row.sample_index] - np.mean(mine), rel=1e-6)
        assert row.reward == mine[row.sample_index]


def test_a_role_without_a_reward_in_one_episode_has_that_episodes_reward_there():
    batch = by_role()
    lacking = batch.episodes[1].name
    batch = changed(batch, lambda each: {"role_rewards": {}} if each.name == lacking else {})
    advantages = row_advantages(batch, AlgorithmConfig(advantage=GrpoAdvantageConfig(normalize="mean")))
    found = {row.name: one for row, (one,) in zip(batch.rows, advantages, strict=True)}
    assert found[0, 1, 1] == found[0, 1, 0] == pytest.approx(REWARDS[0, 1] - REWARDS[0].mean())
    others = [0.0, 4.0]
    assert found[0, 2, 1] == pytest.approx(4.0 - np.mean(others))


def test_roles_that_are_not_trained_are_no_rows_and_compare_nothing():
    batch = by_role()
    kept = changed(
        batch,
        lambda each: {
            "trajectories": tuple(msgspec.structs.replace(one, trained=one.role == "critic") for one in each.trajectories)
        },
    )
    assert {row.role for row in kept.rows} == {"critic"}
    assert {one.role for one in compared(kept)} == {"critic"}
    assert len(compared(kept)) == 6
    nothing = changed(batch, lambda each: trajectories_changed(each, trained=False))
    assert (nothing.rows, compared(nothing)) == ((), [])
    assert len(nothing.trained) == 6, "they count as episodes all the same"


def test_penalties_are_subtracted_from_the_rewards_that_they_belong_to():
    batch = by_role()
    every = compared(batch)
    reduced = with_penalties(batch, [0.5 * number for number in range(len(every))])
    for number, one in enumerate(every):
        after = reduced.episodes[one.episode]
        assert (after.reward if one.role is None else after.role_rewards[one.role]) == one.reward - 0.5 * number


KINDS = (SequenceMeanTokenMeanConfig, SequenceMeanTokenSumConfig, lambda **unit: ConstantAggregationConfig(tokens=7, **unit))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", ["episode", "trajectory"])
def test_aggregation_is_over_episodes_or_trajectories(kind, unit):
    config = kind(unit=unit)
    batch = changed(BATCH, lambda each: {"weight": 1.0 + each.sample_index})
    terms = [np.random.default_rng(number).normal(size=row.loss_tokens) for number, row in enumerate(batch.rows)]
    sequences = Sequences.of(batch.rows, config)
    factors = (sequences.weights * shares(sequences, config))[sequences.of_rows].tolist()
    loss = sum(factor * term.sum() for factor, term in zip(factors, terms, strict=True)) / denominator(sequences, config)
    names = [row.episode if unit == "episode" else row.name for row in batch.rows]
    joined = {name: np.concatenate([t for t, n in zip(terms, names, strict=True) if n == name]) for name in names}
    weight = dict(zip(names, (row.weight for row in batch.rows), strict=True))
    means = {"SequenceMeanTokenMeanConfig": np.mean, "SequenceMeanTokenSumConfig": np.sum}
    of_one = means.get(type(config).__name__, lambda values: np.sum(values) / 7)
    expected = sum(weight[name] * of_one(values) for name, values in joined.items()) / sum(weight[name] for name in joined)
    assert loss == pytest.approx(expected)


@given(st.integers(1, 3))
def test_mini_batches_keep_episodes_whole(count):
    parts = mini_batches(BATCH, count)
    config = SequenceMeanTokenMeanConfig()
    assert sum(denominator(Sequences.of(part.rows, config), config) for part in parts) == 6
    assert sorted(row.name for part in parts for row in part.rows) == sorted(row.name for row in BATCH.rows)


def test_tokens_have_no_unit():
    sequences = Sequences.of(BATCH.rows, TokenMeanConfig())
    assert denominator(sequences, TokenMeanConfig()) == TOKENS.sum()
    assert torch.equal(shares(sequences, TokenMeanConfig()), torch.ones(22, dtype=torch.float64))
