"""Which Hugging Face folders the learner takes, what it reads of them, and what it writes."""

import json

import pytest
import rank_side
import torch
from learner_samples import assemble, make_batch, make_model, make_recipe
from ranks import run_ranks
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def stored(folder):
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("grid", [(1, 1, 1), (2, 2, 2)], ids=["one", "tp2-pp2-dp2"])
def test_shards_are_bit_equal_to_what_was_loaded(tmp_path, architecture, grid):
    folder = make_model(tmp_path, architecture)
    tensor, pipeline, data = grid
    recipe = make_recipe(folder, tensor=tensor, pipeline=pipeline, data=data)
    results = run_ranks(rank_side.train, recipe, folder, *make_batch(), 0, None, tensor=tensor, pipeline=pipeline, data=data)
    whole = assemble([shards for _, shards, _ in results])
    expected = stored(folder)
    assert whole.keys() == expected.keys()
    assert all(torch.equal(torch.from_numpy(whole[name]).float(), expected[name]) for name in expected)


def test_saving_gives_back_the_folder_that_was_loaded_and_never_overwrites(tmp_path):
    source, target = tmp_path / "model", tmp_path / "saved"
    make_model(source, "llama")
    (source / "tokenizer_config.json").write_text('{"kept": true}')
    assert (
        run_ranks(rank_side.save_twice, make_recipe(source, tensor=2, pipeline=2), source, target, tensor=2, pipeline=2)
        == ["FileExistsError"] * 4
    )
    before, after = stored(source), stored(target)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (target / "tokenizer_config.json").read_text() == '{"kept": true}'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "saved"]


def test_a_model_in_several_files_is_read_by_its_index(tmp_path):
    folder = make_model(tmp_path)
    whole = stored(folder)
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="30KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    assert len(list(folder.glob("*.safetensors"))) > 1
    ((_, shards, _),) = run_ranks(rank_side.train, make_recipe(folder), folder, *make_batch(), 0)
    assert all(torch.equal(torch.from_numpy(values), whole[name]) for name, _, _, values in shards)


def refusal(folder, **recipe):
    """The one line with which every rank refuses."""
    ranks = {name: recipe.get(name, 1) for name in ("tensor", "pipeline", "data")}
    kinds_and_texts = run_ranks(rank_side.cannot_start, make_recipe(folder, **ranks), folder, **ranks)
    assert {kind for kind, _ in kinds_and_texts} == {"RecipeError"}
    return kinds_and_texts[0][1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture GPT2LMHeadModel is not supported; supported are Llama"),
        ({"attention_bias": True}, "Qwen3ForCausalLM with attention_bias is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}, "rope_type yarn"),
    ],
)
def test_an_unsupported_model_says_so(tmp_path, change, message):
    folder = make_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    text = refusal(folder)
    assert text.startswith("model.path: ")
    assert message in text


def test_a_model_that_cannot_be_divided_says_by_what(tmp_path):
    folder = make_model(tmp_path, num_hidden_layers=3, num_key_value_heads=1)
    assert refusal(folder, tensor=2) == (
        "learner.tensor_parallel: 2 does not divide the model's 1 key-value heads; choose a divisor of 1"
    )
    assert (
        refusal(folder, pipeline=2) == "learner.pipeline_parallel: 2 does not divide the model's 3 layers; choose a divisor of 3"
    )


def test_weights_that_do_not_fit_the_configuration_are_refused(tmp_path):
    folder = make_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    assert "lacks tensor lm_head.weight" in refusal(folder)
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    assert "tensor model.layers.0.mlp.gate_proj.weight has shape (48, 32), its config.json implies (64, 32)" in refusal(folder)
    (folder / "model.safetensors").unlink()
    assert "holds neither model.safetensors nor" in refusal(folder)


def test_a_grid_that_is_not_the_recipes_is_refused(tmp_path):
    folder = make_model(tmp_path)
    (kind, text), _ = run_ranks(rank_side.cannot_start, make_recipe(folder), folder, data=2)
    assert (kind, "is of a 1 x 1 x 2 x 1 x 1 x 1 grid" in text) == ("ValueError", True)


def test_loading_reads_rectangles(tmp_path):
    """The reader that ranks use, without ranks."""
    from learners.megatron.hugging_face import HuggingFaceTensors

    folder = make_model(tmp_path)
    with safe_open(folder / "model.safetensors", "pt") as file:
        whole = file.get_tensor("model.layers.2.mlp.down_proj.weight")
    with HuggingFaceTensors(folder) as tensors:
        part = tensors.rectangle("model.layers.2.mlp.down_proj.weight", (32, 48), (0, 24), (32, 24))
    assert torch.equal(part, whole[:, 24:])
