"""Loads of experts: what is counted, the auxiliary loss and the bias that keep them even, in layouts that divide experts too."""

import layout_side
import numpy as np
import pytest
import rank_side
import torch
from learner_samples import assemble, make_batch, make_model, needed, row_of, separate
from ranks import run_ranks
from test_architectures import trained
from test_layouts import assert_same_gradients, recipe_and_grid
from test_model_folders import stored
from transformers import AutoModelForCausalLM

from asyncrl.core.errors import RecipeError
from asyncrl.core.measures.metrics import combine
from asyncrl.core.recipe.learner import ExpertsConfig, LearnerConfig, LoraConfig
from asyncrl.learners.supported_model import supported_config

LAYOUTS = {"one": {}, "ep2": {"data": 2, "expert": 2}, "tp2-ep2": {"tensor": 2, "data": 2, "expert": 2}, "pp2": {"pipeline": 2}}
COEFFICIENT, RATE = 0.05, 0.01
BATCH = separate(*make_batch())
"""No row shares its beginning with another, so each token is computed once."""


def gradients(folder, experts, layout):
    recipe, grid = recipe_and_grid(folder, clip_grad=1e9, experts=experts, micro_batch_tokens=1024, **layout)
    results = run_ranks(layout_side.gradients, recipe, folder, *BATCH, **grid)
    readings = combine(reading for report, _, _ in results for reading in report.readings)
    of_ranks = {tuple(names) for _, _, names in results}
    return readings, trained(assemble([shards for _, shards, _ in results])), of_ranks


def router_logits(model, rows):
    """The logits of each layer's router for the tokens of ``rows`` that are computed, in float64."""
    found = [
        model(torch.from_numpy(row.token_ids[: needed(row)].astype(np.int64))[None], output_router_logits=True).router_logits
        for row in rows
    ]
    return [torch.cat(layer) for layer in zip(*found, strict=True)]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_auxiliary_loss_adds_its_gradient(tmp_path, layout):
    """That of the mean over all tokens of each micro-batch's loss, as Megatron and Hugging Face define it for a layer."""
    folder = make_model(tmp_path, "qwen3_moe")
    batch, episodes = BATCH
    rows = {row.name: row_of(episodes, row) for row in batch.rows}
    _, with_loss, micro_batches = gradients(folder, ExpertsConfig(balance="aux", aux_coefficient=COEFFICIENT), layout)
    _, without, _ = gradients(folder, ExpertsConfig(), layout)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager")
    tokens = sum(needed(row) for row in rows.values())
    loss = 0.0
    for names in micro_batches:
        for logits in router_logits(model, [rows[name] for name in names]):
            chosen = torch.zeros_like(logits).scatter(1, logits.topk(2).indices, 1.0)
            even = 4 * (chosen.mean(0) / 2 * logits.softmax(-1).mean(0)).sum()
            loss += COEFFICIENT * even * len(logits) / tokens
    loss.backward()
    for layer in range(4):
        name = f"model.layers.{layer}.mlp.gate.weight"
        expected = model.get_parameter(name).grad.numpy()
        added = with_loss[name] - without[name]
        assert np.linalg.norm(added - expected) < 1e-3 * np.linalg.norm(expected), name


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_bias_of_experts_with_less_than_an_even_load_rises(tmp_path, layout):
    folder = make_model(tmp_path, "glm4_moe")
    batch, episodes = BATCH
    recipe, grid = recipe_and_grid(folder, experts=ExpertsConfig(balance="bias", bias_rate=RATE), **layout)
    results = run_ranks(rank_side.train, recipe, folder, batch, episodes, 1, **grid)
    found = assemble([shards for _, shards, _ in results])
    readings = combine(reading for reports, _, _ in results for report in reports for reading in report.readings)
    before = stored(folder)
    loads = loads_by_hand(folder)
    for layer, load in loads.items():
        name = f"model.layers.{layer}.mlp.gate.e_score_correction_bias"
        moved = found[name] - before[name].double().numpy()
        np.testing.assert_allclose(moved, RATE * np.sign(load.mean() - load), atol=1e-6)
    shares = np.stack([load / load.sum() for load in loads.values()])
    assert readings["experts/least_load"] == pytest.approx(4 * shares.min())
    assert readings["experts/most_load"] == pytest.approx(4 * shares.max())
    entropy = -(shares * np.log(np.maximum(shares, 1e-300))).sum(1) / np.log(4)
    assert readings["experts/load_entropy"] == pytest.approx(entropy.mean())


def loads_by_hand(folder):
    """How often Hugging Face's model chooses each expert, by layer."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    loads = {}

    def count(layer):
        def hook(_, __, output):
            loads[layer] = loads.get(layer, 0) + np.bincount(output[2].flatten(), minlength=4)

        return hook

    for number in (1, 2, 3):
        model.model.layers[number].mlp.gate.register_forward_hook(count(number))
    batch, episodes = BATCH
    with torch.no_grad():
        for record in batch.rows:
            row = row_of(episodes, record)
            model(torch.from_numpy(row.token_ids[: needed(row)].astype(np.int64))[None])
    return loads


def test_without_balance_the_gradients_and_the_bias_are_what_they_were(tmp_path):
    folder = make_model(tmp_path, "glm4_moe")
    recipe, grid = recipe_and_grid(folder)
    ((_, shards, _),) = run_ranks(rank_side.train, recipe, folder, *BATCH, 1, **grid)
    found, before = assemble([shards]), stored(folder)
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    np.testing.assert_array_equal(found[name], before[name].double().numpy())
    readings, one, _ = gradients(folder, ExpertsConfig(), {})
    _, other, _ = gradients(folder, ExpertsConfig(), {"expert": 2, "data": 2})
    assert_same_gradients(one, other)
    assert "experts/replay_differs" not in readings


@pytest.mark.parametrize(
    ("architecture", "learner", "text"),
    [
        (
            "qwen3",
            {"experts": ExpertsConfig(replay=True)},
            "learner.experts.replay: it is asked of routers, and the model has no",
        ),
        ("qwen3", {"experts": ExpertsConfig(balance="aux")}, "learner.experts.balance: it is asked of routers"),
        ("qwen3_moe", {"experts": ExpertsConfig(balance="bias")}, "those of this model have none"),
        (
            "glm4_moe",
            {"experts": ExpertsConfig(balance="bias"), "lora": LoraConfig(targets=("q_proj",))},
            "with learner.lora they stay as they are",
        ),
    ],
)
def test_what_routers_cannot_do_is_refused(tmp_path, architecture, learner, text):
    folder = make_model(tmp_path, architecture)
    with pytest.raises(RecipeError, match=text):
        supported_config(folder, LearnerConfig(**learner))
