"""Advantages of several rewards of a batch's rows, against the paper's formula in numpy."""

import numpy as np
import pytest
from learner_samples import changed, make_batch

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.advantage import GdpoAdvantageConfig
from asyncrl.core.recipe.algorithm import AlgorithmConfig
from asyncrl.core.recipe.custom import CustomAdvantageConfig
from asyncrl.core.recipe.decode import decode_recipe
from asyncrl.learners.algorithm.row_advantages import row_advantages
from asyncrl.learners.custom.check import check_customs

WEIGHTS = {"right": 1.0, "polite": -0.25, "brief": 2.0}


def graded():
    """The sample batch; of the first group all are equally brief."""
    batch, _ = make_batch()
    random = np.random.default_rng(1)
    rewards = random.uniform(-1, 1, (len(batch.rows), 3)).round(1)
    rewards[:4, 0] = 0.7  # names sort to brief, polite, right
    return changed(batch, lambda each: {"rewards": tuple(rewards[batch.episodes.index(each)].tolist())}), rewards


def test_each_reward_is_normalised_by_group_and_their_sum_by_batch():
    batch, rewards = graded()
    summed = np.zeros(len(batch.rows))
    groups = np.array([row.group_id for row in batch.rows])
    for name, column in zip(sorted(WEIGHTS), rewards.T, strict=True):
        for group in set(groups):
            of_group = column[groups == group]
            if of_group.max() > of_group.min():
                summed[groups == group] += WEIGHTS[name] * (of_group - of_group.mean()) / of_group.std()
    of_tokens = np.repeat(summed, [row.loss_tokens for row in batch.rows])
    expected = (summed - of_tokens.mean()) / of_tokens.std()
    advantages = [one for (one,) in row_advantages(batch, AlgorithmConfig(advantage=GdpoAdvantageConfig(rewards=WEIGHTS)))]
    assert advantages == pytest.approx(expected.tolist(), rel=1e-6)


def test_the_order_in_which_a_recipe_names_them_does_not_matter():
    batch, _ = graded()
    other = dict(reversed(WEIGHTS.items()))
    assert row_advantages(batch, AlgorithmConfig(advantage=GdpoAdvantageConfig(rewards=WEIGHTS))) == row_advantages(
        batch, AlgorithmConfig(advantage=GdpoAdvantageConfig(rewards=other))
    )


def test_records_without_them_are_refused():
    batch, _ = make_batch()
    with pytest.raises(ValueError, match="sample 0 of group 0 has 0 rewards"):
        row_advantages(batch, AlgorithmConfig(advantage=GdpoAdvantageConfig(rewards=WEIGHTS)))


def test_a_function_of_the_users_own_gets_the_rewards_that_the_recipe_names():
    batch, rewards = graded()
    own = CustomAdvantageConfig(name="own_functions:difference_of_rewards", rewards=("right", "polite", "brief"))
    algorithm = AlgorithmConfig(advantage=own)
    assert algorithm.reward_names == ("right", "polite", "brief")
    found = [one for (one,) in row_advantages(batch, algorithm)]
    assert found == pytest.approx((rewards[:, 1] - rewards[:, 0]).tolist(), rel=1e-6)
    settings = {"name": "x", "steps": 30, "model": {"path": "tiny"}, "environment": {"name": "calculator"}}
    advantage = {"kind": "custom", "name": own.name, "rewards": ["right", "short"]}
    assert check_customs(decode_recipe({**settings, "algorithm": {"advantage": advantage}})) == []
    with pytest.raises(RecipeError, match=r"right, short are known of whole episodes"):
        decode_recipe({**settings, "algorithm": {"advantage": advantage, "credit": {"kind": "turn"}}})
