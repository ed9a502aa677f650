"""Every architecture that can be trained: Hugging Face's gradients in every layout, and the same bits in its folder."""

import json
import math

import msgspec
import numpy as np
import pytest
import rank_side
import torch
from learner_samples import EXPERTS, OSS_ROPE, assemble, make_batch, make_model
from ranks import run_ranks
from safetensors.torch import save_file
from test_experts import load_and_train, train_and_save
from test_layouts import assert_same_gradients, gradients, hugging_face_gradients, recipe_and_grid
from test_learner_checkpoint import assert_identical
from test_model_folders import stored
from test_ranks import distance
from transformers import AutoModelForCausalLM

from asyncrl.core.architectures.known import KNOWN
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.learners.megatron.model_config import policy_config
from asyncrl.learners.supported_model import supported_config
from asyncrl.run.models.model_shape import read_shape
from asyncrl.run.models.model_weights import check_folder

LEARNER = LearnerConfig(micro_batch_tokens=64, lr=1e-3)
DENSE = {"tensor": 2, "pipeline": 2}
MIXED = {"tensor": 2, "data": 2, "expert": 2}
DEEPSEEK_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
DEEPSEEK_YARN |= {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}
NEW = {
    "mistral": ({}, DENSE),
    "qwen3_yarn": ({}, DENSE),
    "mixtral": ({}, MIXED),
    "qwen2_moe": ({}, MIXED),
    "glm4_moe": ({}, MIXED),
    "deepseek_v3": ({}, MIXED),
    "deepseek_v3-pipeline": ({"q_lora_rank": None, "n_routed_experts": 4, "n_group": 2, "topk_group": 2}, DENSE),
    "deepseek_v3-yarn": (
        {"n_group": 1, "topk_group": 1, "rope_parameters": DEEPSEEK_YARN},
        {"context": 2, "recompute": "selective"},
    ),
    "gpt_oss": ({}, MIXED),
    "gpt_oss-pipeline": ({}, DENSE),
    "gpt_oss-context": ({}, {"context": 2, "recompute": "selective"}),
    "glm4_moe-without-biases": ({"attention_bias": False, "use_qk_norm": False}, {"tensor": 2, "expert_tensor": 2}),
    "qwen2_moe-some-dense": ({"mlp_only_layers": [1], "norm_topk_prob": False}, {"pipeline": 2, "data": 2, "expert": 2}),
}


@pytest.fixture(params=NEW)
def case(request, tmp_path):
    overrides, layout = NEW[request.param]
    return make_model(tmp_path / "model", request.param.partition("-")[0], **overrides), layout


def test_gradients_are_those_of_plain_hugging_face_on_one_rank_and_on_several(case):
    folder, layout = case
    expected = hugging_face_gradients(folder)
    assert_same_gradients(trained(gradients(folder)[1]), expected)
    assert_same_gradients(trained(gradients(folder, **layout)[1]), expected)


def trained(gradients):
    """Without the weights that no gradient trains."""
    return {name: values for name, values in gradients.items() if not name.endswith("e_score_correction_bias")}


def test_what_is_loaded_is_what_is_published_and_saved(case, tmp_path):
    folder, layout = case
    saved = tmp_path / "saved"
    recipe, grid = recipe_and_grid(folder, **layout)
    results = run_ranks(rank_side.train, recipe, folder, *make_batch(), 0, saved, **grid)
    whole, expected, written = assemble([shards for _, shards, _ in results]), stored(folder), stored(saved)
    assert whole.keys() == expected.keys() == written.keys()
    for name, tensor in expected.items():
        assert torch.equal(torch.from_numpy(whole[name]).float(), tensor)
        assert torch.equal(written[name], tensor)
    ids = torch.arange(60)[None]
    with torch.no_grad():
        both = [AutoModelForCausalLM.from_pretrained(each)(ids).logits for each in (folder, saved)]
    assert torch.equal(*both)


def test_another_layout_goes_on_from_a_checkpoint(case, tmp_path):
    folder, layout = case
    target = tmp_path / "version-000008"
    saved, _, weights = train_and_save(folder, target, **layout)
    loaded, _, resumed = load_and_train(folder, target)
    assert_identical(loaded, saved)
    assert distance(resumed, weights) < 1e-5


def test_every_architecture_is_one_that_a_test_trains(tmp_path):
    trained = {"qwen2", "qwen3", "qwen3_moe", "llama", "mistral", "mixtral", "qwen2_moe", "glm4_moe", "deepseek_v3", "gpt_oss"}
    assert {description.model_type for description in KNOWN.values()} == trained


def test_the_plan_reads_of_a_folder_what_the_learner_reads(case):
    folder, _ = case
    shape, config = read_shape(str(folder)), policy_config(folder, LEARNER)
    check_folder(folder, shape, "model.path")
    assert shape.architecture == config.architecture
    matrices = [tensor.shape for tensor in shape.architecture.tensors() if len(tensor.shape) > 1 and tensor.shape[0] > 1]
    assert shape.parameters == sum(map(math.prod, matrices))


def test_layers_that_predict_further_tokens_are_left_alone(tmp_path):
    folder = make_model(tmp_path, "glm4_moe")
    weights = stored(folder) | {"model.layers.4.eh_proj.weight": torch.ones(32, 64)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RecipeError, match=r"has tensor model\.layers\.4\.eh_proj\.weight"):
        check_folder(folder, read_shape(str(folder)), "model.path")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    check_folder(folder, read_shape(str(folder)), "model.path")
    assert_same_gradients(trained(gradients(folder)[1]), hugging_face_gradients(folder))


def test_yarn_is_not_the_plain_embedding(tmp_path):
    """A row that is longer than those of the training, and one that is not: YaRN scales both."""
    found = []
    for number, architecture in enumerate(("qwen3", "qwen3_yarn")):
        folder = make_model(tmp_path / str(number), architecture)
        found.append(gradients(folder)[1])
    assert max(np.abs(found[0][name] - found[1][name]).max() for name in found[0]) > 1e-4


@pytest.mark.parametrize(
    ("architecture", "overrides", "text"),
    [
        ("mistral", {"sliding_window": 64}, "sliding_window 64 of 128 positions"),
        ("mixtral", {"sliding_window": 64}, "sliding_window 64 of 128 positions"),
        ("qwen3", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope_type dynamic"),
        ("glm4_moe", {"n_group": 2}, "n_group 2"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func softmax"),
        ("deepseek_v3", {"topk_method": "greedy"}, "topk_method greedy"),
        ("deepseek_v3", {"rope_interleave": False}, "rope_interleave false"),
        ("glm4_moe", {"norm_topk_prob": False}, "norm_topk_prob false"),
        ("qwen2_moe", {"qkv_bias": False}, "qkv_bias false"),
        ("gpt_oss", {"layer_types": ["full_attention"] * 4}, "layer_types that do not alternate"),
        ("gpt_oss", {"rms_norm_eps": 1e-6}, "rms_norm_eps 1e-06"),
        ("gpt_oss", {"swiglu_limit": 5.0}, r"swiglu_limit 5\.0"),
        ("gpt_oss", {"swiglu_alpha": 1.0}, r"swiglu_alpha 1\.0"),
        ("gpt_oss", {"rope_parameters": OSS_ROPE | {"attention_factor": 1.0}}, r"attention_factor 1\.0"),
    ],
)
def test_what_the_learner_does_not_compute_is_refused(tmp_path, architecture, overrides, text):
    folder = make_model(tmp_path, architecture, **overrides)
    with pytest.raises(RecipeError, match=text):
        supported_config(folder, LEARNER)


def test_ranks_cannot_divide_experts_with_biases(tmp_path):
    learner = msgspec.structs.replace(LEARNER, tensor_parallel=2, expert_tensor_parallel=2)
    with pytest.raises(RecipeError, match=r"learner\.expert_tensor_parallel: 2 ranks cannot divide experts that have biases"):
        supported_config(make_model(tmp_path, "gpt_oss"), learner)


def test_a_window_that_no_row_is_longer_than_is_full_attention(tmp_path):
    folder = make_model(tmp_path, "mistral", sliding_window=128)
    supported_config(folder, LEARNER)
    assert_same_gradients(gradients(folder)[1], hugging_face_gradients(folder))


def test_ranks_that_cannot_divide_the_shared_expert_are_refused(tmp_path):
    folder = make_model(tmp_path, "qwen2_moe", **EXPERTS | {"shared_expert_intermediate_size": 41})
    with pytest.raises(RecipeError, match="2 does not divide the model's 41 channels of the shared expert"):
        supported_config(folder, msgspec.structs.replace(LEARNER, tensor_parallel=2))
