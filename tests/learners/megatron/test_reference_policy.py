"""The reference policy is the one the run began with, on any grid and after a resume; what holds the policy near it does."""

import export_side
import msgspec
import numpy as np
import pytest
import rank_side
import torch
from learner_samples import assemble, batch_of, edited, make_batch, make_model, make_recipe, make_several, row_of, untimed
from loss_samples import decoupled, decoupled_ppo
from ranks import run_ranks
from test_ranks import distance
from transformers import AutoModelForCausalLM

from asyncrl.core.measures.metrics import combine
from asyncrl.core.recipe.advantage import GrpoAdvantageConfig, RlooAdvantageConfig
from asyncrl.core.recipe.algorithm import AdaptiveKlConfig, KlInLossConfig, KlInRewardConfig, TurnCreditConfig
from asyncrl.core.recipe.learner import LoraConfig
from asyncrl.learners.algorithm.kl import adapted_coefficient

BATCHES = [make_batch(version) for version in (5, 6)]
IN_LOSS = decoupled_ppo(kl=KlInLossConfig(coefficient=0.5))
IN_REWARD = decoupled_ppo(kl=KlInRewardConfig(coefficient=0.5), minibatches=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def run(function, folder, algorithm, *arguments, grid=(1, 1, 1), **learner):
    tensor, pipeline, data = grid
    recipe = make_recipe(folder, tensor=tensor, pipeline=pipeline, data=data, **learner)
    recipe = msgspec.structs.replace(recipe, algorithm=algorithm)
    return run_ranks(function, recipe, folder, *arguments, tensor=tensor, pipeline=pipeline, data=data)


def train(folder, algorithm, batches=BATCHES, **options):
    """Readings of each step, and the weights at the end."""
    results = run(rank_side.train_on, folder, algorithm, batches, **options)
    readings = [untimed(combine(r for reports, _ in results for r in reports[step].readings)) for step in range(len(batches))]
    return readings, assemble([shards for _, shards in results])


def estimates_of(reference, policy, batch, episodes):
    """Schulman's third estimate of the divergence of each trained token, times its weight, by Hugging Face's models in float64.

    The weight is the policy's probability over that of the engine that sampled the token, at most 2.
    """
    models = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64) for path in (reference, policy)]
    estimates = []
    for record in batch.rows:
        row = row_of(episodes, record)
        ids = torch.from_numpy(row.token_ids.astype(np.int64))
        places = torch.from_numpy(np.flatnonzero(row.versions() >= batch.oldest_version))
        with torch.no_grad():
            before, now = (torch.log_softmax(model(ids[None]).logits[0] / 0.8, -1)[places - 1, ids[places]] for model in models)
        weights = (now - torch.from_numpy(row.logprobs).double()[places]).exp().clamp(max=2.0)
        estimates += (weights * ((before - now).exp() - 1 - (before - now))).tolist()
    return estimates


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, alpha=8.0)], ids=["all_weights", "adapters"])
def test_the_weights_the_run_began_with_are_at_no_distance_and_later_ones_at_the_distance_of_hugging_faces(
    folder, tmp_path, lora
):
    (first, second), _ = train(folder, IN_LOSS, lora=lora)
    assert first["kl/reference_k3"] == 0.0
    ((reports, _, _),) = run(rank_side.train, folder, IN_LOSS, *BATCHES[0], 1, tmp_path / "after", lora=lora)
    assert reports[0].readings
    estimates = estimates_of(folder, tmp_path / "after", *BATCHES[1])
    assert second["kl/reference_k3"] == pytest.approx(np.mean(estimates), rel=1e-3)
    assert second["kl/coefficient"] == 0.5


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A model of the same sizes, with other weights."""
    return make_model(tmp_path_factory.mktemp("other"), seed=1)


def named(reference, **options):
    return decoupled_ppo(kl=KlInLossConfig(coefficient=0.5, reference=str(reference)), **options)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, alpha=8.0)], ids=["all_weights", "adapters"])
@pytest.mark.parametrize(
    "correction",
    [decoupled(), decoupled(anchor="behaviour", weight="none"), decoupled(anchor="proximal_log_linear")],
    ids=lambda correction: correction.anchor,
)
def test_a_named_reference_is_measured_from(folder, other, correction, lora):
    """By the same number, whichever policy anchors the loss's ratio: all tokens' staleness is at most 1."""
    (first,), _ = train(folder, named(other, correction=correction), BATCHES[:1], lora=lora)
    assert first["kl/reference_k3"] == pytest.approx(np.mean(estimates_of(other, folder, *BATCHES[0])), rel=1e-3)
    assert first["kl/reference_k3"] > 0.01


def test_the_policy_s_own_folder_as_a_named_reference_is_the_default_to_the_bit(folder):
    own, trained = train(folder, named(folder))
    default, expected = train(folder, IN_LOSS)
    assert own == default
    for name, tensor in expected.items():
        np.testing.assert_array_equal(trained[name], tensor)


def test_a_resume_keeps_the_named_reference_and_refuses_another(folder, other, tmp_path):
    target, after = tmp_path / "version-000007", [make_batch(7)]
    trained = run(rank_side.train_and_save, folder, named(other), BATCHES, target, after)
    again = run(rank_side.load_and_train, folder, named(other), target, after)
    (told,) = (untimed(combine(result[1][0].readings)) for result in trained)
    assert [untimed(combine(result[2][0].readings)) for result in again] == [told]
    # Whatever the reference is, it is no part of the model that is exported.
    assert run(export_side.export, folder, named("/gone"), target, tmp_path / "exported") == [7]
    ((outcome,),) = run(rank_side.loads, folder, named(folder), [target])
    assert outcome[0] == "CheckpointMismatch"
    assert "reference_weights" in outcome[1]
    assert "algorithm.kl.reference it was saved with" in outcome[1]


def test_a_resume_refuses_another_model_for_the_weights_that_the_run_began_with(folder, other, tmp_path):
    """Nothing else of that model is used, so that a run without a reference may go on with its weights replaced."""
    target, plain = tmp_path / "version-000007", tmp_path / "plain" / "version-000007"
    run(rank_side.train_and_save, folder, IN_LOSS, BATCHES, target, [])
    run(rank_side.train_and_save, folder, decoupled_ppo(), BATCHES, plain, [])
    ((refused, taken),) = run(rank_side.loads, other, IN_LOSS, [target, plain])
    assert refused[0] == "CheckpointMismatch"
    assert "first_weights" in refused[1]
    assert taken[0] == ""
    assert run(rank_side.loads, folder, IN_LOSS, [target], grid=(2, 1, 1))[0][0][0] == ""
    assert run(rank_side.loads, other, decoupled_ppo(), [target])[0][0][0] == ""
    assert run(export_side.export, folder, IN_LOSS, target, tmp_path / "exported") == [7]


@pytest.fixture(scope="module")
def one_rank(folder):
    """What one rank reports with each algorithm, and the weights it comes to."""
    return {algorithm.kl: train(folder, algorithm, lr=1e-3) for algorithm in (IN_LOSS, IN_REWARD)}


@pytest.mark.parametrize("algorithm", [IN_LOSS, IN_REWARD], ids=["in_loss", "in_reward"])
@pytest.mark.parametrize("grid", [(2, 1, 1), (1, 2, 1), (1, 1, 2)], ids=["tp2", "pp2", "dp2"])
def test_every_grid_sees_the_same_reference(folder, one_rank, grid, algorithm):
    expected, weights = one_rank[algorithm.kl]
    readings, divided = train(folder, algorithm, grid=grid, lr=1e-3)
    for step, expected_step in zip(readings, expected, strict=True):
        assert step == pytest.approx(expected_step, rel=1e-3, abs=1e-6)
    assert distance(divided, weights) < 1e-5
    assert expected[1]["kl/reference_k3"] > 0


def test_it_holds_the_policy_near(folder):
    free, _ = train(folder, decoupled_ppo(kl=KlInLossConfig(coefficient=1e-9)), BATCHES * 3, lr=1e-3)
    for kl in (KlInLossConfig(coefficient=20.0), KlInRewardConfig(coefficient=20.0)):
        held, _ = train(folder, decoupled_ppo(kl=kl), BATCHES * 3, lr=1e-3)
        assert held[-1]["kl/reference_k3"] < 0.7 * free[-1]["kl/reference_k3"]


def test_in_the_reward_it_changes_nothing_before_the_first_step_and_then_the_advantages(folder):
    plain, first = train(folder, decoupled_ppo(), lr=1e-3)
    penalised, second = train(folder, msgspec.structs.replace(IN_REWARD, minibatches=1), lr=1e-3)
    assert penalised[0]["loss/policy"] == plain[0]["loss/policy"]
    assert abs(penalised[1]["loss/policy"] - plain[1]["loss/policy"]) > 1e-4
    assert distance(first, second) > 1e-5


def test_each_turn_pays_its_own_divergence(folder):
    batches = [with_turn_rewards(*one) for one in BATCHES]
    turns = decoupled_ppo(advantage=RlooAdvantageConfig(), credit=TurnCreditConfig(), kl=KlInRewardConfig(coefficient=1.0))
    penalised, _ = train(folder, turns, batches, lr=1e-3)
    divided, _ = train(folder, turns, batches, grid=(1, 1, 2), lr=1e-3)
    free, _ = train(folder, msgspec.structs.replace(turns, kl=KlInRewardConfig(coefficient=1e-9)), batches, lr=1e-3)
    assert divided[1] == pytest.approx(penalised[1], rel=1e-3, abs=1e-6)
    assert penalised[1]["loss/policy"] != pytest.approx(free[1]["loss/policy"], rel=1e-3)


def with_turn_rewards(batch, episodes):
    def rewarded(episode):
        turns = enumerate(episode.trajectories[0].turns)
        return edited(episode, turns=tuple(msgspec.structs.replace(turn, reward=episode.reward * place) for place, turn in turns))

    return batch_of(map(rewarded, episodes.values()), batch.version, batch.oldest_version)


@pytest.mark.parametrize("grid", [(1, 1, 1), (1, 2, 1)], ids=["one", "pp2"])
def test_an_adaptive_coefficient_and_the_reference_survive_a_resume_to_the_bit(folder, tmp_path, grid):
    control = AdaptiveKlConfig(target=0.01, horizon=2.0)
    algorithm = decoupled_ppo(kl=KlInRewardConfig(coefficient=0.3, control=control))
    target = tmp_path / "version-000007"
    after = [make_batch(7), make_batch(8)]
    trained = run(rank_side.train_and_save, folder, algorithm, BATCHES, target, after, grid=grid)
    again = run(rank_side.load_and_train, folder, algorithm, target, after, grid=grid)
    weights, resumed = assemble([result[2] for result in trained]), assemble([result[3] for result in again])
    for name, tensor in weights.items():
        np.testing.assert_array_equal(resumed[name], tensor)
    first, second = (combine(r for result in trained for r in result[1][step].readings) for step in range(2))
    redone = [combine(r for result in again for r in result[2][step].readings) for step in range(2)]
    assert [step["kl/coefficient"] for step in redone] == [first["kl/coefficient"], second["kl/coefficient"]]
    expected = adapted_coefficient(first["kl/coefficient"], first["kl/reference_k3"], control.target, control.horizon)
    assert second["kl/coefficient"] == pytest.approx(expected)
    assert first["kl/coefficient"] != 0.3


@pytest.mark.parametrize("data", [1, 2])
def test_all_rows_with_a_reward_lose_their_divergences_together(folder, tmp_path, data):
    """Rows of one episode may be on several ranks; a role with a reward of its own loses its own rows' alone."""
    shapes = [("solver", 5, 3), ("critic", 4, 2), ("solver", 3, 4)]
    made = [
        make_several(g, s, shapes[: s + 1], float(s - g), role_rewards={"critic": 2.0 * s}) for g in range(2) for s in range(3)
    ]
    batch, episodes = batch_of(made)
    kl = KlInRewardConfig(coefficient=0.5, reference=str(make_model(tmp_path / "other", seed=7)))
    algorithm = decoupled_ppo(kl=kl, advantage=GrpoAdvantageConfig(normalize="mean"))
    recipe = msgspec.structs.replace(make_recipe(folder, data=data), algorithm=algorithm)
    of_ranks = run_ranks(rank_side.prepared_rows, recipe, folder, batch, episodes, data=data)
    found = {name: row for rows in of_ranks for name, row in rows.items()}
    assert sorted(found) == [row.name for row in batch.rows]
    assert all(abs(apart) > 0.1 for _, apart in found.values())
    for row in batch.rows:
        left = []
        for sample in range(3):
            same = [other.name for other in batch.rows if other.name[:2] == (row.group_id, sample) and other.role == row.role]
            reward = 2.0 * sample if row.role == "critic" else float(sample - row.group_id)
            left.append(reward - 0.5 * sum(found[name][1] for name in same))
        (advantage,) = found[row.name][0]
        assert advantage == pytest.approx(left[row.sample_index] - np.mean(left), rel=1e-4, abs=1e-5)
