"""What can be known of fp8 without a GPU: where it is refused, what Megatron is told, and that products get whole tiles."""

from types import SimpleNamespace

import pytest
import rank_side
import torch
from learner_samples import make_batch, make_model, make_recipe
from ranks import run_ranks

from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.learners.preparation import Preparation
from asyncrl.learners.rank import FileMeeting, RankSpec


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def of_recipe(folder, **learner):
    return make_recipe(folder, dtype="bfloat16", **learner)


@pytest.mark.parametrize(("asked", "told"), [("hybrid", "hybrid"), ("e4m3", "e4m3"), ("none", None)])
def test_megatron_is_told(folder, asked, told):
    (transformer,) = run_ranks(rank_side.transformer_settings, of_recipe(folder, fp8=asked), folder)
    assert transformer["fp8"] == told
    assert transformer["fp8_recipe"] == "tensorwise"
    assert transformer["fp8_param"] is False


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_host_without_a_gpu_is_refused(folder):
    ((kind, text),) = run_ranks(rank_side.cannot_start, of_recipe(folder, fp8="hybrid"), folder)
    assert kind == "RecipeError"
    assert text.startswith("learner.fp8: hybrid products need TransformerEngine and a GPU")
    assert "this host has no GPU" in text
    assert "set it to none" in text


def test_sides_that_fp8_cannot_multiply_are_refused(folder):
    recipe = of_recipe(folder, fp8="e4m3", tensor=2)
    kinds_and_texts = run_ranks(rank_side.cannot_start, recipe, folder, tensor=2)
    assert {kind for kind, _ in kinds_and_texts} == {"RecipeError"}
    assert "learner.fp8: a rank's 24 feed-forward channels are not a multiple of 16" in kinds_and_texts[0][1]


def test_experts_are_refused(tmp_path):
    folder = make_model(tmp_path, "qwen3_moe")
    ((kind, text),) = run_ranks(rank_side.cannot_start, of_recipe(folder, fp8="hybrid"), folder)
    assert kind == "RecipeError"
    assert text.startswith("learner.fp8: ")
    assert "choose a model without experts" in text


def test_every_rank_gets_a_multiple_of_16_tokens(folder):
    batch, episodes = make_batch()
    rank = RankSpec(rank=0, meeting=FileMeeting(""), layout=ParallelLayout(tensor=2))

    def packed(fp8):
        recipe = of_recipe(folder, fp8=fp8, tensor=2)
        preparation = Preparation(
            recipe.algorithm, recipe.learner, recipe.sampling.temperature, rank, SimpleNamespace(routing=None)
        )
        (mini_batch,) = preparation.mini_batches(batch, episodes, 0.0)
        return mini_batch.micro_batches

    plain, padded = packed("none"), packed("hybrid")
    assert any(len(part.token_ids) % 32 for part in plain)
    assert not any(len(part.token_ids) % 32 for part in padded)
    assert [part.targets.tolist() for part in padded] == [part.targets.tolist() for part in plain]
