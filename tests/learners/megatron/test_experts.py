"""A mixture of experts, however its experts are shared out and divided: Hugging Face's numbers, and the same bits on disk."""

import msgspec
import pytest
import rank_side
import torch
from learner_samples import assemble, make_batch, make_model
from ranks import run_ranks
from test_critic import GAE
from test_layouts import assert_same_gradients, gradients, hugging_face_gradients, recipe_and_grid
from test_learner_checkpoint import AFTER, BEFORE, assert_identical, readings_of
from test_model_folders import stored
from test_ranks import distance

from asyncrl.core.recipe.algorithm import KlInRewardConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"), "qwen3_moe")


@pytest.fixture(scope="module")
def one_rank(folder):
    """Readings and gradients of one rank."""
    return gradients(folder)


def test_one_rank_has_the_gradients_of_plain_hugging_face(folder, one_rank):
    assert_same_gradients(one_rank[1], hugging_face_gradients(folder))


@pytest.mark.parametrize(
    "options",
    [{"norm_topk_prob": False}, {"mlp_only_layers": [0, 3], "num_experts": 8, "num_experts_per_tok": 3}],
    ids=["weights-not-normalised", "some-layers-dense"],
)
def test_variants_have_the_gradients_of_plain_hugging_face(tmp_path, options):
    folder = make_model(tmp_path, "qwen3_moe", **options)
    expected = hugging_face_gradients(folder)
    assert_same_gradients(gradients(folder)[1], expected)
    assert_same_gradients(gradients(folder, pipeline=2, data=2, expert=2)[1], expected)


LAYOUTS = {
    # Each expert whole on both ranks, and its tokens on either.
    "tp2": {"tensor": 2},
    "dp2-ep2": {"data": 2, "expert": 2},
    "tp2-ep2": {"tensor": 2, "expert": 2},
    "cp2-ep2": {"context": 2, "expert": 2},
    "tp2-etp2": {"tensor": 2, "expert_tensor": 2},
    # Ranks with unlike numbers of tokens divide an expert.
    "dp2-etp2": {"data": 2, "expert_tensor": 2},
    "tp2-dp2-ep2-etp2": {"tensor": 2, "data": 2, "expert": 2, "expert_tensor": 2},
    # All rows in one micro-batch: the schedule's round is filled with empty ones, without a token for most experts.
    "pp2-vpp2-dp2-ep2": {
        **{"pipeline": 2, "virtual_pipeline": 2, "data": 2, "expert": 2},
        **{"recompute": "full", "micro_batch_tokens": 1000},
    },
    "tp2-pp2-dp2-ep4": {"tensor": 2, "pipeline": 2, "data": 2, "expert": 4},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_has_the_loss_and_gradients_of_one_rank(folder, one_rank, layout):
    """The norm of the gradient among the readings."""
    expected, expected_gradients, _ = one_rank
    readings, found, _ = gradients(folder, **layout)
    assert readings == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert_same_gradients(found, expected_gradients)


def test_critic_and_reference_are_those_of_one_rank(folder):
    algorithm = msgspec.structs.replace(GAE, minibatches=2, kl=KlInRewardConfig(coefficient=0.1))

    def train(**layout):
        recipe, grid = recipe_and_grid(folder, **layout)
        recipe = msgspec.structs.replace(recipe, algorithm=algorithm)
        reports, shards = zip(*run_ranks(rank_side.train_on, recipe, folder, BEFORE[:2], **grid), strict=True)
        return readings_of(reports), assemble(shards)

    expected, weights = train()
    readings, divided = train(data=2, expert=2)
    for step, expected_step in zip(readings, expected, strict=True):
        assert step == pytest.approx(expected_step, rel=2e-3, abs=1e-5)
    assert distance(divided, weights) < 1e-4
    assert expected[1]["critic/value_mean"] != 0


@pytest.mark.parametrize("name", ["dp2-ep2", "dp2-etp2", "tp2-dp2-ep2-etp2", "pp2-vpp2-dp2-ep2"])
def test_experts_load_publish_and_save_the_same_bits(folder, tmp_path, name):
    saved = tmp_path / "saved"
    recipe, grid = recipe_and_grid(folder, **LAYOUTS[name])
    results = run_ranks(rank_side.train, recipe, folder, *make_batch(), 0, saved, **grid)
    whole, expected, written = assemble([shards for _, shards, _ in results]), stored(folder), stored(saved)
    assert whole.keys() == expected.keys() == written.keys()
    for tensor_name, tensor in expected.items():
        assert torch.equal(torch.from_numpy(whole[tensor_name]).float(), tensor)
        assert torch.equal(written[tensor_name], tensor)


def train_and_save(folder, target, **layout):
    """Weights saved, readings of each step after it, and the weights these led to."""
    recipe, grid = recipe_and_grid(folder, **layout)
    results = run_ranks(rank_side.train_and_save, recipe, folder, BEFORE, target, AFTER, **grid)
    saved, reports, shards = zip(*results, strict=True)
    return assemble(saved), readings_of(reports), assemble(shards)


def load_and_train(folder, source, again=None, **layout):
    """Load the checkpoint and train on, as :func:`train_and_save` trains before it saves."""
    recipe, grid = recipe_and_grid(folder, **layout)
    results = run_ranks(rank_side.load_and_train, recipe, folder, source, AFTER, again, **grid)
    _, loaded, reports, shards = zip(*results, strict=True)
    return assemble(loaded), readings_of(reports), assemble(shards)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_layout_goes_on_to_the_bit(folder, tmp_path, dtype):
    target, layout = tmp_path / "version-000008", {"tensor": 2, "expert": 2, "dtype": dtype}
    saved, expected, weights = train_and_save(folder, target, **layout)
    loaded, readings, resumed = load_and_train(folder, target, **layout)
    assert_identical(loaded, saved)
    assert readings == expected
    assert_identical(resumed, weights)
    assert distance(weights, saved) > 1e-3


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({}, {"tensor": 2, "data": 2, "expert": 2, "expert_tensor": 2}),
        ({"data": 2, "expert": 2}, {"tensor": 2}),
        ({"tensor": 2, "expert_tensor": 2}, {"data": 2, "expert": 2}),
        ({"data": 2, "pipeline": 2, "expert": 2}, {}),
    ],
)
def test_another_layout_goes_on_closely_from_the_same_bits(folder, tmp_path, written, read):
    """Weights, master weights and moments; by saving again at once."""
    target, again = tmp_path / "first" / "version-000008", tmp_path / "second" / "version-000008"
    saved, expected, weights = train_and_save(folder, target, **written)
    loaded, readings, resumed = load_and_train(folder, target, again, **read)
    assert_identical(loaded, saved)
    for step, expected_step in zip(readings, expected, strict=True):
        assert step == pytest.approx(expected_step, rel=1e-5, abs=1e-6)
    assert distance(resumed, weights) < 1e-5
    recipe, _ = recipe_and_grid(folder)
    (tensors,) = run_ranks(rank_side.stored_tensors, recipe, [target, again])
    assert_identical(*tensors)


def test_a_critic_goes_on_in_another_layout(folder, tmp_path):
    target, after = tmp_path / "version-000008", AFTER[:1]

    def run(function, *arguments, **layout):
        recipe, grid = recipe_and_grid(folder, **layout)
        recipe = msgspec.structs.replace(recipe, algorithm=GAE)
        return list(zip(*run_ranks(function, recipe, folder, *arguments, **grid), strict=True))

    saved, reports, weights = run(rank_side.train_and_save, BEFORE, target, after, data=2, expert=2)
    _, loaded, resumed_reports, resumed = run(rank_side.load_and_train, target, after, tensor=2)
    assert_identical(assemble(loaded), assemble(saved))
    assert readings_of(resumed_reports)[0] == pytest.approx(readings_of(reports)[0], rel=1e-3, abs=1e-5)
    assert distance(assemble(resumed), assemble(weights)) < 1e-5


def test_a_checkpoint_of_other_experts_is_refused(folder, tmp_path):
    target = tmp_path / "version-000000"
    recipe, _ = recipe_and_grid(folder)
    run_ranks(rank_side.train_and_save, recipe, folder, [], target, [])
    other = make_model(tmp_path / "other", "qwen3_moe", num_experts=8, mlp_only_layers=[2])
    (((kind, text, _),),) = run_ranks(rank_side.loads, recipe_and_grid(other)[0], other, [target])
    assert kind == "CheckpointMismatch"
    assert "experts 4 (this run: 8), expert_layers (0, 1, 2, 3) (this run: (0, 1, 3))" in text


def test_replicas_of_experts_that_differ_at_the_start_are_refused(folder):
    recipe, grid = recipe_and_grid(folder, data=4, expert=2)
    errors = run_ranks(rank_side.differing_experts, recipe, **grid)
    assert errors[0].startswith("1 parameters, the first weight, differ")
    assert len(set(errors)) == 1


@pytest.mark.parametrize(
    ("model", "learner", "message"),
    [
        ({}, {"expert": 3, "data": 3}, "learner.expert_parallel: 3 does not divide the model's 4 experts; choose a divisor of 4"),
        (
            {"moe_intermediate_size": 25},
            {"expert_tensor": 2, "data": 2},
            "learner.expert_tensor_parallel: 2 does not divide the model's 25 channels of an expert; choose a divisor of 25",
        ),
        (
            {"mlp_only_layers": [0, 1]},
            {"pipeline": 2},
            "learner.pipeline_parallel: stage 0 of 2 has none of the model's 2 layers with experts; choose fewer stages, so that "
            "each has one",
        ),
        ({"num_experts_per_tok": 1}, {}, "norm_topk_prob with a single expert per token"),
    ],
)
def test_experts_that_cannot_be_shared_out_are_refused(tmp_path, model, learner, message):
    folder = make_model(tmp_path, "qwen3_moe", **model)
    recipe, grid = recipe_and_grid(folder, **learner)
    outcomes = set(run_ranks(rank_side.cannot_start, recipe, folder, **grid))
    assert {kind for kind, _ in outcomes} == {"RecipeError"}
    assert all(message in text for _, text in outcomes)


def test_a_model_without_experts_has_none_to_share_out(tmp_path):
    folder = make_model(tmp_path)
    recipe, grid = recipe_and_grid(folder, data=2, expert=2)
    assert set(run_ranks(rank_side.cannot_start, recipe, folder, **grid)) == {
        (
            "RecipeError",
            "learner.expert_parallel: 2 x learner.expert_tensor_parallel 1 ranks are to share out experts, and the model has "
            "none; set both to 1",
        )
    }
