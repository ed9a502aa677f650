"""What differs on a GPU, as far as a CPU can show it."""

import gpu_side
import pytest
import torch
from learner_samples import assemble, make_model
from msgspec.structs import replace
from ranks import run_ranks
from test_layouts import recipe_and_grid
from test_learner_checkpoint import AFTER, BEFORE, assert_identical, readings_of
from test_model_folders import stored
from test_ranks import distance

from asyncrl.core.recipe.algorithm import KlInLossConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("from_engine", [False, True])
def test_a_checkpoint_passes_between_layers_with_and_without_extra_state(folder, tmp_path, from_engine):
    recipe, grid = recipe_and_grid(folder)
    ((saved, loaded),) = run_ranks(
        gpu_side.between_layers, recipe, folder, BEFORE[:1], tmp_path / "version-000006", from_engine, **grid
    )
    assert_identical(assemble([loaded]), assemble([saved]))


def test_the_fused_adam_goes_on_to_the_bit_from_a_checkpoint_that_gloo_gathered(folder, tmp_path):
    def train(checkpoint, gpu, loads):
        recipe, grid = recipe_and_grid(folder, data=2)
        results = run_ranks(gpu_side.goes_on, recipe, folder, BEFORE[:1], checkpoint, AFTER, gpu, loads, **grid)
        reports, weights = zip(*results, strict=True)
        return readings_of(reports), assemble(weights)

    target = tmp_path / "gpu" / "version-000006"
    readings, weights = train(target, True, False)
    again, resumed = train(target, True, True)
    assert again == readings
    assert_identical(resumed, weights)
    _, plain = train(tmp_path / "cpu" / "version-000006", False, False)
    assert distance(weights, plain) < 1e-5
    # Either kind of optimizer goes on from the other's checkpoint.
    _, crossed = train(target, False, True)
    assert distance(crossed, plain) < 1e-5


@pytest.mark.parametrize(("gpu", "times"), [("own", 0), ("shared", 1)])
def test_a_learner_that_shares_its_gpu_gives_memory_back_before_it_publishes(folder, gpu, times):
    recipe, grid = recipe_and_grid(folder)
    recipe = replace(recipe, learner=replace(recipe.learner, gpu=gpu))
    assert run_ranks(gpu_side.gives_memory_back, recipe, folder, **grid) == [times]


def test_a_learner_that_is_closed_has_unpinned_its_memory(folder, tmp_path):
    """CUDA refuses copies of memory that was freed and handed out again before it was unpinned ("invalid argument")."""
    recipe, grid = recipe_and_grid(folder)
    recipe = replace(recipe, algorithm=replace(recipe.algorithm, kl=KlInLossConfig(coefficient=0.1)))
    assert run_ranks(gpu_side.unpins, recipe, folder, BEFORE[:1], tmp_path / "version-000006", **grid) == [(2, 0)]


@pytest.mark.parametrize("layout", [{}, {"data": 2, "expert": 2}, {"tensor": 2, "expert_tensor": 2}], ids=["one", "ep2", "etp2"])
def test_grouped_experts_load_publish_and_save_the_same_bits(tmp_path, layout):
    folder, saved = make_model(tmp_path / "model", "qwen3_moe"), tmp_path / "saved"
    recipe, grid = recipe_and_grid(folder, **layout)
    whole = assemble(run_ranks(gpu_side.grouped_experts, recipe, folder, saved, **grid))
    expected, written = stored(folder), stored(saved)
    assert whole.keys() == expected.keys() == written.keys()
    for name, tensor in expected.items():
        assert torch.equal(torch.from_numpy(whole[name]).float(), tensor)
        assert torch.equal(written[name], tensor)
