"""Model FLOPs beside what torch counts of the Hugging Face model, and of a step."""

import msgspec
import pytest
import rank_side
import torch
from learner_samples import VOCABULARY, make_batch, make_model, make_recipe, needed, row_of, separate
from loss_samples import decoupled_ppo
from ranks import run_ranks
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from asyncrl.core.measures.metrics import combine
from asyncrl.core.recipe.advantage import GaeAdvantageConfig
from asyncrl.core.recipe.algorithm import KlInLossConfig
from asyncrl.core.recipe.learner import LearnerConfig, LoraConfig
from asyncrl.learners.flops import ProductShapes, backward_flops, forward_flops, peak_flops
from asyncrl.learners.megatron.model_config import policy_config, product_shapes

LAYERS, HIDDEN, HEADS, GROUPS, HEAD_DIM = 4, 32, 4, 2, 16
SHAPES = ProductShapes(
    hidden=HIDDEN,
    heads=HEADS,
    query_groups=GROUPS,
    head_dim=HEAD_DIM,
    feed_forward=(3 * HIDDEN * 48,) * LAYERS,
    outputs=VOCABULARY,
)
# One dense layer, and three of 4 experts, of which a token has 2.
MIXTURE = msgspec.structs.replace(
    SHAPES, feed_forward=(HIDDEN * 4 + 2 * 3 * HIDDEN * 24, 3 * HIDDEN * 48, *(HIDDEN * 4 + 2 * 3 * HIDDEN * 24,) * 2)
)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("mixture"), "qwen3_moe", mlp_only_layers=[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def counted(model, length, predicted, windows=(0,)):
    """Forward and backward pass of a row, by torch's count; attention less what causality hides, which torch counts too."""
    with FlopCounterMode(display=False) as counter:
        hidden = model.model(torch.zeros(1, length, dtype=torch.int64)).last_hidden_state
        model.lm_head(hidden[0, -predicted:]).sum().backward()
    by_operator = counter.get_flop_counts()["Global"]
    pairs = torch.ones(length, length).tril()
    visible = sum(pairs.triu(1 - window if window else -length).mean().item() for window in windows) / len(windows)
    with_biases = by_operator.get(torch.ops.aten.addmm, 0)
    return by_operator[torch.ops.aten.mm] + with_biases + by_operator[torch.ops.aten.bmm] * visible


@pytest.mark.parametrize(("name", "shapes"), [("folder", SHAPES), ("mixture", MIXTURE)])
def test_a_pass_is_what_torch_counts(request, name, shapes):
    model = AutoModelForCausalLM.from_pretrained(
        request.getfixturevalue(name), attn_implementation="eager", experts_implementation="eager"
    )
    rows = {7: 3, 20: 11, 1: 1}
    expected = sum(counted(model, length, predicted) for length, predicted in rows.items())
    found = forward_flops(shapes, rows, sum(rows.values())) + backward_flops(shapes, rows, sum(rows.values()))
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("architecture", ["mistral", "mixtral", "qwen2_moe", "glm4_moe", "gpt_oss"])
def test_the_shapes_of_an_architecture_are_those_that_torch_counts(tmp_path, architecture):
    folder = make_model(tmp_path, architecture)
    shapes = product_shapes(policy_config(folder, LearnerConfig(micro_batch_tokens=64, lr=1e-3)))
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", experts_implementation="eager")
    found = forward_flops(shapes, [20], 11) + backward_flops(shapes, [20], 11)
    assert found == pytest.approx(counted(model, 20, 11, shapes.windows or (0,)), rel=1e-6)
    # A prefix and what continues it are as much work as the row of both, whatever a window hides.
    assert forward_flops(shapes, [8, 12], 0, [0, 8]) == forward_flops(shapes, [20], 0)


def test_a_pass_beside_frozen_weights_is_what_torch_counts(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").requires_grad_(requires_grad=False)
    model.enable_input_require_grads()
    first, second = (torch.zeros(shape, requires_grad=True) for shape in ((5, 64), (32, 5)))
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_hook(lambda _, inputs, output: output + inputs[0] @ first.T @ second.T)
    shapes = msgspec.structs.replace(SHAPES, adapters=LAYERS * 5 * (64 + 32))
    found = forward_flops(shapes, [20], 11) + backward_flops(shapes, [20], 11)
    assert found == pytest.approx(counted(model, 20, 11), rel=1e-6)


@pytest.mark.parametrize("grid", [{}, {"tensor": 2}, {"pipeline": 2}], ids=["one", "tp2", "pp2"])
def test_a_step_of_adapters_counts_no_gradients_of_frozen_weights(folder, grid):
    batch, episodes = separate(*make_batch())
    recipe = make_recipe(folder, lora=LoraConfig(rank=5, targets=("o_proj",)), **grid)
    results = run_ranks(rank_side.train, recipe, folder, batch, episodes, 1, None, **grid)
    readings = combine(reading for reports, _, _ in results for reading in reports[0].readings)
    shapes = msgspec.structs.replace(SHAPES, adapters=LAYERS * 5 * (64 + 32))
    rows = [row_of(episodes, row) for row in batch.rows]
    described = shapes, [needed(row) for row in rows], sum(int(row.loss_mask.sum()) for row in rows)
    expected = forward_flops(*described) + backward_flops(*described)
    assert flops_of(readings) * recipe.learner.layout.ranks == pytest.approx(expected, rel=1e-9)


def readings_of(folder, algorithm=None, batch_and_rows=None, **learner):
    recipe = make_recipe(folder, **learner)
    if algorithm is not None:
        recipe = msgspec.structs.replace(recipe, algorithm=algorithm)
    (result,) = run_ranks(rank_side.train, recipe, folder, *(batch_and_rows or separate(*make_batch())), 1, None)
    return combine(result[0][0].readings)


def flops_of(readings):
    return readings["learner/tflops_per_rank"] * 1e12 * readings["learner/step_seconds"]


def test_a_shared_prefix_counts_once_and_every_row_sees_it(folder):
    batch, episodes = make_batch()
    readings = readings_of(folder, batch_and_rows=(batch, episodes), micro_batch_tokens=1000)
    # The prompts of the second and third group have 9 and 8 tokens; each row keeps its last one.
    shared = [0] * 4 + [8] * 4 + [7] * 4
    rows = [row_of(episodes, row) for row in batch.rows]
    own = [needed(row) - prefix for row, prefix in zip(rows, shared, strict=True)]
    sampled = sum(int(row.loss_mask.sum()) for row in rows)
    expected = forward_flops(SHAPES, [8, 7, *own], sampled, [0, 0, *shared])
    assert flops_of(readings) == pytest.approx(3 * expected, rel=1e-9)
    assert readings["learner/tokens_computed"] == 8 + 7 + sum(own)
    # A prefix and what continues it are as much work as the row of both.
    whole = forward_flops(SHAPES, [20], 0)
    assert forward_flops(SHAPES, [8, 12], 0, [0, 8]) == whole > forward_flops(SHAPES, [8, 12], 0)


def test_a_step_counts_all_its_passes(folder, mixture):
    batch, episodes = separate(*make_batch())
    rows = [row_of(episodes, row) for row in batch.rows]
    lengths, sampled = [needed(row) for row in rows], sum(int(row.loss_mask.sum()) for row in rows)
    policy = forward_flops(SHAPES, lengths, sampled)
    critic = forward_flops(msgspec.structs.replace(SHAPES, outputs=1), lengths, sampled)
    readings = readings_of(folder)
    assert flops_of(readings) == pytest.approx(3 * policy, rel=1e-9)
    assert "learner/mfu" not in readings, "a CPU's peak is not known"
    # The reference's pass is a forward pass; the critic is asked for its values, and then trained.
    assert flops_of(readings_of(folder, decoupled_ppo(kl=KlInLossConfig(coefficient=0.1)))) == pytest.approx(4 * policy, rel=1e-9)
    assert flops_of(readings_of(mixture)) == pytest.approx(3 * forward_flops(MIXTURE, lengths, sampled), rel=1e-9)
    with_critic = readings_of(folder, decoupled_ppo(advantage=GaeAdvantageConfig()))
    assert flops_of(with_critic) == pytest.approx(3 * policy + 4 * critic, rel=1e-9)


def test_only_known_devices_have_a_peak():
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("NVIDIA H200 MIG 1g.18gb") is None
