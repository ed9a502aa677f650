"""Adapters train as those of a plain model do, in every layout, beside weights that never change."""

import json

import lora_side
import msgspec
import numpy as np
import pytest
import rank_side
import torch
from learner_samples import assemble, make_batch, make_model, make_recipe, untimed
from loss_samples import decoupled_ppo
from ranks import run_ranks
from safetensors.torch import load_file, save_file
from test_layouts import hugging_face_loss, recipe_and_grid
from test_learner_checkpoint import AFTER, BEFORE, assert_identical, load_and_train, ranks_of, train_and_save
from test_model_folders import stored
from test_ranks import distance
from test_reference_policy import run
from transformers import AutoModelForCausalLM

from asyncrl.core.measures.metrics import combine
from asyncrl.core.recipe.advantage import GaeAdvantageConfig
from asyncrl.core.recipe.learner import LoraConfig

RANK, ALPHA = 3, 5.0
LORA = LoraConfig(rank=RANK, alpha=ALPHA)
FEW = LoraConfig(rank=RANK, alpha=ALPHA, targets=("v_proj", "up_proj", "q_proj"))
ATTENTION = LoraConfig(rank=RANK, alpha=ALPHA, targets=("q_proj", "k_proj", "v_proj", "o_proj"))
LATENT = LoraConfig(rank=RANK, alpha=ALPHA, targets=("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"))
WHOLE_QUERIES = LoraConfig(rank=RANK, alpha=ALPHA, targets=("q_proj", "kv_a_proj_with_mqa", "o_proj"))
BATCHES = [make_batch(version) for version in (5, 6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def readings_of(reports_by_rank):
    return untimed(combine(reading for report in reports_by_rank for reading in report.readings))


def one_step(folder, *, lora=LORA, **layout):
    """Readings of a step with adapters that are not zero, the adapters before it, their gradients, the weights after it."""
    recipe, grid = recipe_and_grid(folder, lora=lora, **{"clip_grad": 1e9} | layout)
    results = run_ranks(lora_side.gradients, recipe, folder, *make_batch(), **grid)
    reports, *shards = zip(*results, strict=True)
    return readings_of(reports), *(assemble(of_ranks) for of_ranks in shards)


def train(folder, batches=BATCHES, saved=None, *, tensor=1, pipeline=1, data=1, lora=LORA, **learner):
    """Readings of each step; the frozen weights, the adapters and the published weights after them; what the optimizer moves."""
    grid = {"tensor": tensor, "pipeline": pipeline, "data": data}
    recipe = make_recipe(folder, **grid, lora=lora, **learner)
    reports, *shards, moved = zip(*run_ranks(lora_side.train, recipe, folder, batches, saved, **grid), strict=True)
    readings = [readings_of([of_rank[step] for of_rank in reports]) for step in range(len(batches))]
    return readings, *(assemble(of_ranks) for of_ranks in shards), sum(moved)


@pytest.fixture(scope="module")
def one_rank(folder):
    return one_step(folder)


def with_adapters(model, adapters):
    """Plain LoRA: a forward hook on each projection; its matrices in float64, with gradients, by name."""
    matrices = {name: torch.from_numpy(values).requires_grad_() for name, values in adapters.items()}

    def beside(first, second):
        return lambda _, inputs, output: output + ALPHA / RANK * (inputs[0] @ first.T @ second.T)

    for name, module in model.named_modules():
        prefix = f"base_model.model.{name}"
        if f"{prefix}.lora_A.weight" in matrices:
            module.register_forward_hook(beside(matrices[f"{prefix}.lora_A.weight"], matrices[f"{prefix}.lora_B.weight"]))
    return matrices


@pytest.mark.parametrize(
    ("architecture", "overrides", "lora"),
    [
        ("qwen3", {}, LORA),
        ("qwen2", {}, FEW),
        ("llama", {}, LORA),
        ("qwen3_moe", {}, ATTENTION),
        ("qwen2_moe", {}, ATTENTION),
        ("glm4_moe", {}, ATTENTION),
        ("gpt_oss", {}, ATTENTION),
        ("deepseek_v3", {}, LATENT),
        ("deepseek_v3", {"q_lora_rank": None}, WHOLE_QUERIES),
    ],
)
def test_a_step_is_that_of_a_plain_model_with_adapters(tmp_path, architecture, overrides, lora):
    folder = make_model(tmp_path, architecture, **overrides)
    readings, adapters, gradients, weights = one_step(folder, lora=lora, lr=1e-3)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager")
    matrices = with_adapters(model, adapters)
    assert len(matrices) == 4 * 2 * len(lora.targets)
    optimizer = torch.optim.AdamW(matrices.values(), lr=1e-3, weight_decay=0.0)
    hugging_face_loss(model).backward()
    for name, matrix in matrices.items():
        expected = matrix.grad.numpy()
        assert np.linalg.norm(expected) > 0
        assert np.linalg.norm(gradients[name] - expected) < 1e-5 * np.linalg.norm(expected), name
    norm = np.sqrt(sum(float(matrix.grad.square().sum()) for matrix in matrices.values()))
    assert readings["learner/grad_norm"] == pytest.approx(norm, rel=1e-5)
    optimizer.step()
    original = stored(folder)
    assert weights.keys() == original.keys()
    for name, weight in original.items():
        prefix = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{prefix}.lora_A.weight" in matrices:
            first, second = (matrices[f"{prefix}.{kind}.weight"].detach() for kind in ("lora_A", "lora_B"))
            np.testing.assert_allclose(weights[name], (weight + ALPHA / RANK * second @ first).numpy(), atol=3e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(weights[name], weight.numpy(), err_msg=name)


LAYOUTS = {
    "tp2": {"tensor": 2},
    "pp2": {"pipeline": 2},
    "dp2": {"data": 2},
    "cp2": {"context": 2},
    "tp2-few": {"tensor": 2, "lora": FEW},
    "tp2-full": {"tensor": 2, "recompute": "full"},
    "pp2-vpp2-selective": {"pipeline": 2, "virtual_pipeline": 2, "recompute": "selective"},
    "tp2-pp2-dp2": {"tensor": 2, "pipeline": 2, "data": 2},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_has_the_adapters_loss_and_gradients_of_one_rank(folder, one_rank, layout):
    expected = one_rank if layout.get("lora", LORA) is LORA else one_step(folder, lora=FEW)
    readings, adapters, gradients, weights = one_step(folder, **layout)
    assert readings == pytest.approx(expected[0], rel=1e-5, abs=1e-6)
    assert_identical(adapters, expected[1])
    assert gradients.keys() == expected[2].keys()
    for name, gradient in expected[2].items():
        assert np.linalg.norm(gradients[name] - gradient) < 1e-5 * np.linalg.norm(gradient), name
    assert distance(weights, expected[3]) < 1e-4


def test_adapters_published_alone_are_those_of_the_whole_model(folder, one_rank):
    """Over all ranks every element once, so that engines get from this layout what one rank would publish."""
    alone = msgspec.structs.replace(LORA, publish="adapter")
    *_, adapters, published, _ = train(folder, lora=alone, tensor=2, pipeline=2)
    assert published.keys() == one_rank[1].keys()
    assert_identical(published, adapters)


@pytest.mark.parametrize(("architecture", "lora"), [("qwen3_moe", ATTENTION), ("deepseek_v3", LATENT)])
def test_attention_beside_experts_has_adapters_in_every_layout(tmp_path, architecture, lora):
    folder = make_model(tmp_path, architecture)
    expected = one_step(folder, lora=lora)
    readings, adapters, gradients, weights = one_step(folder, lora=lora, tensor=2, data=2, expert=2, recompute="full")
    assert readings == pytest.approx(expected[0], rel=1e-5, abs=1e-6)
    assert_identical(adapters, expected[1])
    for name, gradient in expected[2].items():
        assert np.linalg.norm(gradients[name] - gradient) < 1e-5 * np.linalg.norm(gradient), name
    assert distance(weights, expected[3]) < 1e-4


def test_experts_have_none(tmp_path):
    folder = make_model(tmp_path, "qwen3_moe")
    ((kind, text),) = run_ranks(rank_side.cannot_start, make_recipe(folder, lora=FEW), folder)
    assert (kind, text.startswith("learner.lora.targets: a model with experts cannot have adapters for up_proj; ")) == (
        "RecipeError",
        True,
    )


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_what_is_recomputed_gives_the_same_bits(folder, one_rank, recompute):
    for found, expected in zip(one_step(folder, recompute=recompute)[1:], one_rank[1:], strict=True):
        assert_identical(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_begins_as_the_model_alone_to_the_bit(folder, dtype):
    (first, *_), _, adapters, published, _ = train(folder, BATCHES[:1], lr=1e-30, dtype=dtype)
    recipe = make_recipe(folder, dtype=dtype)
    ((reports, weights, _),) = run_ranks(rank_side.train, recipe, folder, *BATCHES[0], 1)
    plain = readings_of(reports)
    for name in plain.keys() - {"learner/grad_norm", "learner/lr"}:
        assert first[name] == plain[name], name
    ((_, weights, _),) = run_ranks(rank_side.train, recipe, folder, *BATCHES[0], 0)
    assert_identical(published, assemble([weights]))
    for name, values in adapters.items():
        assert (np.abs(values).max() < 1e-20) == (".lora_B." in name)
        if ".lora_A." in name:
            assert np.abs(values).max() == pytest.approx(values.shape[1] ** -0.5, rel=0.2)


@pytest.mark.parametrize(("dtype", "grid"), [("float32", {"data": 2}), ("bfloat16", {"tensor": 2}), ("bfloat16", {})])
def test_the_weights_stay_to_the_bit_and_the_sum_is_published(folder, dtype, grid):
    _, frozen, adapters, published, moved = train(folder, lr=1e-2, dtype=dtype, **grid)
    kept = {name: tensor.to(getattr(torch, dtype)) for name, tensor in stored(folder).items()}
    assert_identical(frozen, {name: tensor.double().numpy() for name, tensor in kept.items()})
    if "tensor" not in grid:
        assert moved == sum(values.size for values in adapters.values())
    for name, weight in kept.items():
        prefix = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{prefix}.lora_A.weight" in adapters:
            added = ALPHA / RANK * adapters[f"{prefix}.lora_B.weight"] @ adapters[f"{prefix}.lora_A.weight"]
            expected = (weight.double() + torch.from_numpy(added)).to(weight.dtype).double().numpy()
            assert np.abs(expected - weight.double().numpy()).max() > 1e-3
            # float32 sums round to the other neighbour now and then, which in bfloat16 is up to 2**-7 away.
            np.testing.assert_allclose(published[name], expected, rtol=2**-7 if dtype == "bfloat16" else 1e-5, atol=1e-7)
            assert (published[name] == expected).mean() > 0.8
        else:
            np.testing.assert_array_equal(published[name], weight.double().numpy())


@pytest.mark.parametrize("grid", [{}, {"tensor": 2, "pipeline": 2}], ids=["one", "tp2-pp2"])
def test_the_saved_folder_holds_the_sum_and_beside_it_the_adapter_as_peft_reads_it(folder, tmp_path, grid):
    _, _, adapters, published, _ = train(folder, saved=tmp_path / "saved", lora=FEW, **grid)
    assert_identical({name: tensor.double().numpy() for name, tensor in stored(tmp_path / "saved").items()}, published)
    tensors = load_file(tmp_path / "saved" / "adapter" / "adapter_model.safetensors")
    assert_identical({name: tensor.double().numpy() for name, tensor in tensors.items()}, adapters)
    assert tensors["base_model.model.model.layers.3.self_attn.v_proj.lora_A.weight"].shape == (RANK, 32)
    assert tensors["base_model.model.model.layers.3.self_attn.v_proj.lora_B.weight"].shape == (32, RANK)
    config = json.loads((tmp_path / "saved" / "adapter" / "adapter_config.json").read_text())
    asked = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["q_proj", "up_proj", "v_proj"]}
    assert config.items() >= (asked | {"base_model_name_or_path": str(folder)}).items()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_holds_adapters_alone_and_goes_on_to_the_bit(folder, tmp_path, dtype):
    target = tmp_path / "version-000008"
    saved, expected, weights = train_and_save(folder, target, lora=LORA, dtype=dtype)
    loaded, readings, resumed = load_and_train(folder, target, lora=LORA, dtype=dtype)
    assert_identical(loaded, saved)
    assert readings == expected
    assert_identical(resumed, weights)
    assert distance(weights, saved) > 1e-3
    (stored_tensors,) = run_ranks(rank_side.stored_tensors, make_recipe(folder), [target])[0]
    assert stored_tensors
    assert all(".lora_A" in name or ".lora_B" in name for name in stored_tensors)


@pytest.mark.parametrize(("written", "read"), [((2, 1, 2), (1, 2, 1)), ((1, 1, 1), (2, 2, 1))])
def test_another_layout_goes_on_closely(folder, tmp_path, written, read):
    target = tmp_path / "version-000008"
    saved, expected, weights = train_and_save(folder, target, grid=written, lora=LORA)
    loaded, readings, resumed = load_and_train(folder, target, grid=read, lora=LORA)
    assert distance(loaded, saved) < 1e-6
    for step, expected_step in zip(readings, expected, strict=True):
        assert step == pytest.approx(expected_step, rel=1e-4, abs=1e-5)
    assert distance(resumed, weights) < 1e-4


def test_other_weights_and_other_adapters_are_refused(folder, tmp_path):
    target, other = tmp_path / "version-000008", make_model(tmp_path / "other")
    train_and_save(folder, target, lora=LORA)
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"][3] += 1e-3
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    (((kind, text, _),),) = ranks_of(rank_side.loads, other, [target], lora=LORA)
    assert (kind, "of another model: frozen_weights " in text) == ("CheckpointMismatch", True)
    (((kind, text, _),),) = ranks_of(rank_side.loads, folder, [target], lora=FEW)
    assert kind == "CheckpointMismatch"
    assert (
        "(this run: rank 3, alpha 5, q_proj up_proj v_proj); resume with the model, learner.dtype, learner.lora, algorithm"
        in text
    )
    (((kind, text, _),),) = ranks_of(rank_side.loads, folder, [target])
    assert (kind, "(this run: none)" in text) == ("CheckpointMismatch", True)


def test_a_critic_beside_adapters_trains_all_of_its_weights_and_survives_a_resume(folder, tmp_path):
    target, algorithm = tmp_path / "version-000008", decoupled_ppo(advantage=GaeAdvantageConfig())
    ((saved, reports, shards),) = run(rank_side.train_and_save, folder, algorithm, BEFORE, target, AFTER, lora=LORA)
    ((_, loaded, redone, resumed),) = run(rank_side.load_and_train, folder, algorithm, target, AFTER, lora=LORA)
    assert_identical(assemble([loaded]), assemble([saved]))
    assert_identical(assemble([resumed]), assemble([shards]))
    assert readings_of(redone[1:]) == readings_of(reports[1:])
    (stored_tensors,) = run_ranks(rank_side.stored_tensors, make_recipe(folder), [target])[0]
    assert "optimizer.state.exp_avg.critic.embedding.word_embeddings.weight" in stored_tensors
