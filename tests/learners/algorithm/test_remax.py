"""ReMax: rewards are compared with that of a greedy episode, which is not trained itself."""

import msgspec
import numpy as np
import pytest
import rank_side
from learner_samples import assemble, changed, make_batch, make_model, make_recipe
from loss_samples import decoupled, decoupled_ppo
from ranks import run_ranks

from asyncrl.core.measures.metrics import combine
from asyncrl.core.recipe.advantage import GrpoAdvantageConfig, RemaxAdvantageConfig
from asyncrl.core.recipe.algorithm import OverlongPenaltyConfig
from asyncrl.core.recipe.correction import MaskBoundConfig
from asyncrl.learners.algorithm.row_advantages import row_advantages, with_overlong_penalty

LOOSE = decoupled(bound=MaskBoundConfig(lower=0.05, upper=20.0))
REMAX = decoupled_ppo(advantage=RemaxAdvantageConfig(), correction=LOOSE)


def with_greedy():
    """The sample batch, the first episode of each group greedy."""
    batch, episodes = make_batch()
    return changed(batch, lambda each: {"greedy": each.sample_index == 0}), episodes


def of_row(batch, algorithm):
    return {row.name[:2]: advantage for row, (advantage,) in zip(batch.rows, row_advantages(batch, algorithm), strict=True)}


def rewards_of(batch, lost=None):
    """The reward of each episode that is not greedy, and that of its group's greedy one."""
    rewards = {each.name: each.reward - (lost[each.name] if lost else 0.0) for each in batch.episodes}
    return {each.name: (rewards[each.name], rewards[each.group_id, 0]) for each in batch.trained}


def test_the_baseline_is_the_greedy_episode_of_the_group():
    batch, _ = with_greedy()
    assert of_row(batch, REMAX) == {name: reward - greedy for name, (reward, greedy) in rewards_of(batch).items()}
    assert len(set(of_row(batch, REMAX).values())) > 1


def test_a_group_whose_greedy_episode_was_destroyed_says_nothing():
    batch, _ = with_greedy()
    left = msgspec.structs.replace(batch, episodes=batch.episodes[1:])
    advantages = of_row(left, REMAX)
    assert [advantages[0, sample] for sample in (1, 2, 3)] == [0.0] * 3
    assert {name: one for name, one in of_row(batch, REMAX).items() if name[0]} == {
        name: one for name, one in advantages.items() if name[0]
    }


def test_a_greedy_episode_loses_for_its_length_as_any_other():
    batch, _ = with_greedy()
    overlong = OverlongPenaltyConfig(limit=30, ramp=20)
    lost = {each.name: 1.0 * np.clip((each.length - 10) / 20, 0, 1) for each in batch.episodes}
    advantages = of_row(with_overlong_penalty(batch, overlong, REMAX.credit), REMAX)
    expected = {name: reward - greedy for name, (reward, greedy) in rewards_of(batch, lost).items()}
    assert advantages == pytest.approx(expected, abs=1e-6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def step(folder, algorithm, batch, episodes, data):
    recipe = msgspec.structs.replace(make_recipe(folder, data=data), algorithm=algorithm)
    results = run_ranks(rank_side.train, recipe, folder, batch, episodes, 1, None, data=data)
    needed = [name for _, _, names in results for name in names]
    readings = combine(reading for reports, _, _ in results for reading in reports[0].readings)
    timed = [name for name in readings if "seconds" in name or "flops" in name]
    for name in timed:
        del readings[name]
    return assemble([shards for _, shards, _ in results]), readings, needed


def test_a_step_is_that_of_the_other_episodes_with_the_same_advantages(folder):
    """A greedy reward at the mean of the others' makes the baseline theirs."""
    batch, episodes = with_greedy()
    trained = msgspec.structs.replace(batch, episodes=batch.trained)
    means = {
        group: np.mean([each.reward for each in batch.trained if each.group_id == group]).item()
        for group in {each.group_id for each in batch.episodes}
    }
    batch = changed(batch, lambda each: {"reward": means[each.group_id]} if each.greedy else {})
    weights, readings, needed = step(folder, REMAX, batch, episodes, 2)
    centred = msgspec.structs.replace(REMAX, advantage=GrpoAdvantageConfig(normalize="mean"))
    expected_weights, expected_readings, _ = step(folder, centred, trained, episodes, 1)
    assert sorted(needed) == sorted(row.name for row in trained.rows)
    assert readings == pytest.approx(expected_readings, rel=1e-5, abs=1e-6)
    assert readings["learner/grad_norm"] > 0
    for name, values in weights.items():
        np.testing.assert_allclose(values, expected_weights[name], rtol=1e-3, atol=1e-5)
