"""Layouts beyond the plain grid: what they change in memory and schedule changes neither loss nor gradients."""

import layout_side
import msgspec
import numpy as np
import pytest
import rank_side
import torch
from learner_samples import assemble, make_batch, make_model, make_recipe, row_of, tensors_of, untimed
from ranks import run_ranks
from test_learner_checkpoint import assert_identical, load_and_train, train_and_save
from test_model_folders import stored
from test_ranks import distance
from transformers import AutoModelForCausalLM

from asyncrl.core.measures.metrics import combine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def test_what_is_recomputed_is_not_kept_and_gives_the_same_bits(folder):
    def kept_for_backward(recompute):
        ((kept, shards),) = run_ranks(
            layout_side.kept_for_backward, make_recipe(folder, recompute=recompute), folder, *make_batch()
        )
        return kept, assemble([shards])

    everything, expected = kept_for_backward("none")
    for recompute, share in (("selective", 0.9), ("full", 0.5)):
        kept, weights = kept_for_backward(recompute)
        assert kept < share * everything
        for name, tensor in expected.items():
            np.testing.assert_array_equal(weights[name], tensor, err_msg=name)


@pytest.fixture(scope="module")
def one_rank(folder):
    """Readings and gradients of one rank."""
    return gradients(folder)


def recipe_and_grid(folder, *, tensor=1, pipeline=1, data=1, context=1, expert=1, expert_tensor=1, **learner):
    """The recipe of a layout, and what :func:`run_ranks` is to be told of it."""
    others = {"context_parallel": context, "expert_parallel": expert, "expert_tensor_parallel": expert_tensor}
    recipe = make_recipe(folder, tensor=tensor, pipeline=pipeline, data=data, **others, **learner)
    return recipe, msgspec.structs.asdict(recipe.learner.layout)


def gradients(folder, **layout):
    recipe, grid = recipe_and_grid(folder, clip_grad=1e9, **layout)
    results = run_ranks(layout_side.gradients, recipe, folder, *make_batch(), **grid)
    readings = combine(reading for report, _, _ in results for reading in report.readings)
    return untimed(readings), assemble([shards for _, shards, _ in results]), [needed for _, _, needed in results]


def assert_same_gradients(left, right):
    """Tensor by tensor, to 1e-5 of its norm."""
    assert left.keys() == right.keys()
    for name, tensor in right.items():
        assert np.linalg.norm(tensor) > 0
        assert np.linalg.norm(left[name] - tensor) < 1e-5 * np.linalg.norm(tensor), name


def assert_same_gradients_by(program, folder, architecture, least=1, **layout):
    """Ranks of a layout that compute by ``program`` of :mod:`layout_side` have the gradients of one that computes as usual, and
    each took the other way at least so often."""
    make_model(folder, architecture)
    expected = gradients(folder)[1]
    recipe, grid = recipe_and_grid(folder, clip_grad=1e9, **layout)
    results = run_ranks(program, recipe, folder, *make_batch(), **grid)
    assert all(taken >= least for taken, _ in results)
    assert_same_gradients(assemble([shards for _, shards in results]), expected)


LAYOUTS = {
    "cp2": {"context": 2},
    "cp3": {"context": 3},
    "tp2-cp2-dp2": {"tensor": 2, "context": 2, "data": 2},
    "pp2-vpp2-cp2": {"pipeline": 2, "virtual_pipeline": 2, "context": 2, "recompute": "selective"},
    "tp2-pp2-dp2": {"tensor": 2, "pipeline": 2, "data": 2},
    "pp2-vpp2": {"pipeline": 2, "virtual_pipeline": 2},
    # All rows in one micro-batch: the schedule's round is filled with empty ones.
    "tp2-pp2-vpp2-full": {"tensor": 2, "pipeline": 2, "virtual_pipeline": 2, "recompute": "full", "micro_batch_tokens": 1000},
}


AS_ON_A_GPU = {
    "qwen3": ("qwen3", {}),
    "biases-tp2-selective": ("qwen2", {"tensor": 2, "recompute": "selective"}),
    "partly-rotated-cp2": ("glm4_moe", {"context": 2}),
    "llama-tp2-pp2-full": ("llama", {"tensor": 2, "pipeline": 2, "recompute": "full"}),
}


@pytest.mark.parametrize(("architecture", "layout"), AS_ON_A_GPU.values(), ids=AS_ON_A_GPU)
def test_queries_keys_and_values_made_at_once_have_the_gradients_of_those_made_in_pieces(tmp_path, architecture, layout):
    assert_same_gradients_by(layout_side.gradients_as_on_a_gpu, tmp_path, architecture, **layout)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_has_the_loss_and_gradients_of_one_rank(folder, one_rank, layout):
    expected, expected_gradients, _ = one_rank
    readings, found, _ = gradients(folder, **layout)
    assert readings == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert_same_gradients(found, expected_gradients)


def hugging_face_gradients(folder):
    """Gradients of Hugging Face's model, in float64."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager")
    hugging_face_loss(model).backward()
    return tensors_of(model, "grad")


def hugging_face_loss(model):
    """Row by row, without packing. At the first step the ratio to the proximal policy is 1."""
    batch, episodes = make_batch()
    loss, count = 0.0, 0
    for record in batch.rows:
        row = row_of(episodes, record)
        rewards = [other.reward for other in batch.rows if other.group_id == record.group_id]
        ids = torch.from_numpy(row.token_ids.astype(np.int64))
        places = torch.from_numpy(np.flatnonzero(row.versions() >= batch.oldest_version))
        logp = torch.log_softmax(model(ids[None]).logits[0] / 0.8, -1)[places - 1, ids[places]]
        weight = (logp.detach() - torch.from_numpy(row.logprobs)[places]).exp().clamp(max=2.0)
        loss -= (weight * logp).sum() * (record.reward - np.mean(rewards)) / (np.std(rewards) or 1.0)
        count += len(places)
    return loss / count


def test_one_rank_has_the_gradients_of_plain_hugging_face(folder, one_rank):
    assert_same_gradients(one_rank[1], hugging_face_gradients(folder))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_chunks_load_and_publish_the_same_bits(tmp_path, architecture):
    folder, saved = make_model(tmp_path / "model", architecture), tmp_path / "saved"
    recipe = make_recipe(folder, pipeline=2, virtual_pipeline=2)
    results = run_ranks(rank_side.train, recipe, folder, *make_batch(), 0, saved, pipeline=2, virtual_pipeline=2)
    whole, expected, written = assemble([shards for _, shards, _ in results]), stored(folder), stored(saved)
    assert whole.keys() == expected.keys() == written.keys()
    for name, tensor in expected.items():
        assert torch.equal(torch.from_numpy(whole[name]).float(), tensor)
        assert torch.equal(written[name], tensor)


def test_chunks_go_on_from_their_checkpoint_to_the_bit_and_others_from_it_closely(folder, tmp_path):
    target, chunks = tmp_path / "version-000008", {"grid": (1, 2, 1), "virtual_pipeline": 2}
    saved, expected, weights = train_and_save(folder, target, **chunks)
    loaded, readings, resumed = load_and_train(folder, target, **chunks)
    assert_identical(loaded, saved)
    assert readings == expected
    assert_identical(resumed, weights)
    loaded, readings, resumed = load_and_train(folder, target, grid=(2, 1, 1))
    assert_identical(loaded, saved)
    assert distance(resumed, weights) < 1e-5


def test_chunks_go_on_from_what_other_layouts_wrote(folder, tmp_path):
    target = tmp_path / "version-000008"
    saved, _, weights = train_and_save(folder, target, grid=(1, 1, 2))
    loaded, _, resumed = load_and_train(folder, target, grid=(1, 2, 1), virtual_pipeline=2)
    assert_identical(loaded, saved)
    assert distance(resumed, weights) < 1e-5


def test_layers_that_the_chunks_do_not_divide_are_refused(tmp_path):
    folder = make_model(tmp_path)
    recipe = make_recipe(folder, pipeline=2, virtual_pipeline=3)
    assert set(run_ranks(rank_side.cannot_start, recipe, folder, pipeline=2, virtual_pipeline=3)) == {
        ("RecipeError", "learner.virtual_pipeline: 3 does not divide the 2 layers of a pipeline stage; choose a divisor of 2")
    }


def test_tensor_parallel_ranks_divide_the_sequence_between_their_products(folder):
    recipe = make_recipe(folder, tensor=2)
    for tokens, normed in run_ranks(layout_side.tokens_in_norms, recipe, folder, *make_batch(), tensor=2):
        assert normed == [count // 2 for count in tokens]


@pytest.mark.parametrize(("ranks", "multiple"), [(2, 2), (4, 2)])
def test_rows_of_log_normal_lengths_are_padded_by_less_than_a_twentieth(ranks, multiple):
    """Only context-parallel ranks pad rows at all; elsewhere a micro-batch is, to a multiple of the tensor-parallel ranks."""
    lengths = np.clip(256 * np.exp(np.random.default_rng(0).standard_normal(64)), 16, 2048).astype(int).tolist()
    (shares,) = run_ranks(layout_side.shares_of_rows, lengths, ranks, multiple)
    _, _, padded = shares[0]
    assert sum(lengths) <= sum(padded) < 1.05 * sum(lengths)


@pytest.mark.parametrize(("ranks", "multiple"), [(2, 1), (2, 2), (3, 4), (4, 3)])
def test_context_parallel_ranks_share_tokens_and_attention_evenly(ranks, multiple):
    lengths = np.random.default_rng(ranks).integers(1, 90, 12).tolist()
    (shares,) = run_ranks(layout_side.shares_of_rows, lengths, ranks, multiple)
    places, pairs, padded = zip(*shares, strict=True)
    assert sorted(place for part in places for place in part) == list(range(sum(padded[0])))
    assert {len(part) for part in places} == {sum(padded[0]) // ranks}
    assert sum(padded[0]) // ranks % multiple == 0
    assert all(0 <= new - old < 2 * ranks for new, old in zip(padded[0], lengths, strict=False))
    assert len(set(pairs)) == 1
    assert sum(pairs) == sum(length * (length + 1) // 2 for length in padded[0])


def test_context_parallel_ranks_publish_save_and_resume_to_the_bit(folder, tmp_path):
    target, saved_folder = tmp_path / "version-000008", tmp_path / "saved"
    batch = make_batch(8)
    recipe = make_recipe(folder, context_parallel=2)
    results = run_ranks(rank_side.train, recipe, folder, *batch, 0, saved_folder, context=2)
    whole, original = assemble([shards for _, shards, _ in results]), stored(folder)
    assert all(torch.equal(torch.from_numpy(whole[name]).float(), tensor) for name, tensor in original.items())
    assert all(torch.equal(stored(saved_folder)[name], tensor) for name, tensor in original.items())
    results = run_ranks(rank_side.train_and_save, recipe, folder, [make_batch(7)], target, [batch], context=2)
    saved, _, weights = (assemble(shards) if kind != 1 else None for kind, shards in enumerate(zip(*results, strict=True)))
    for options, closeness in (({"context": 2}, 0.0), ({"pipeline": 2}, 1e-5)):
        other = make_recipe(folder, context_parallel=options.get("context", 1), pipeline=options.get("pipeline", 1))
        results = run_ranks(rank_side.load_and_train, other, folder, target, [batch], **options)
        assert_identical(assemble([loaded for _, loaded, _, _ in results]), saved)
        assert distance(assemble([shards for _, _, _, shards in results]), weights) <= closeness
