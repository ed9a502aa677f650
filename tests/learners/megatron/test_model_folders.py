"""Which Hugging Face folders the learner takes, what it reads of them, and what it writes."""

import json
import stat

import pytest
import rank_side
import torch
from foreign_folders import make_foreign
from learner_samples import assemble, make_batch, make_model, make_recipe, make_rounded_but_for_its_bias
from ranks import run_ranks
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from asyncrl.core.architectures.joint_experts import names_in
from asyncrl.core.errors import RecipeError
from asyncrl.run.models.model_shape import read_shape
from asyncrl.run.models.model_weights import check_folder


def stored(folder):
    """The tensors of a folder, each expert's by itself."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            names = names_in(name, len(tensor))
            found |= {name: tensor} if names == [name] else dict(zip(names, tensor, strict=True))
    return found


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
    (source / "LICENSE").write_text("Use it well.")
    (source / "pytorch_model.bin.index.json").write_text('{"weight_map": {}}')
    for path in source.iterdir():
        path.chmod(0o444)  # as in a store that many share
    assert (
        run_ranks(rank_side.save_twice, make_recipe(source, tensor=2, pipeline=2), source, target, tensor=2, pipeline=2)
        == ["FileExistsError"] * 4
    )
    before, after = stored(source), stored(target)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (target / "tokenizer_config.json").read_text() == '{"kept": true}'
    assert (target / "LICENSE").read_text() == "Use it well."
    assert not (target / "pytorch_model.bin.index.json").exists()
    assert all(path.stat().st_mode & stat.S_IWUSR for path in target.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "saved"]


@pytest.mark.parametrize("pipeline", [1, 2])
def test_each_tensor_is_saved_in_its_own_type(tmp_path, pipeline):
    source, target = make_rounded_but_for_its_bias(tmp_path / "model"), tmp_path / "saved"
    recipe = make_recipe(source, dtype="bfloat16", pipeline=pipeline)
    assert run_ranks(rank_side.save_twice, recipe, source, target, pipeline=pipeline) == ["FileExistsError"] * pipeline
    before, after = stored(source), stored(target)
    assert before.keys() == after.keys()
    assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16, torch.float32}
    for name, tensor in after.items():
        assert tensor.dtype is before[name].dtype
        assert torch.equal(tensor, before[name])
    assert json.loads((target / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_model_in_several_files_is_read_by_its_index(tmp_path):
    folder = make_model(tmp_path)
    whole = stored(folder)
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="30KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    assert len(list(folder.glob("*.safetensors"))) > 1
    ((_, shards, _),) = run_ranks(rank_side.train, make_recipe(folder), folder, *make_batch(), 0)
    assert all(torch.equal(torch.from_numpy(values), whole[name]) for name, _, _, values in shards)


def test_a_folder_as_others_save_it_is_read_as_transformers_reads_it(tmp_path):
    folder = make_model(tmp_path)
    own = make_foreign(folder)
    check_folder(folder, read_shape(str(folder)), "model.path")
    ((_, shards, _),) = run_ranks(rank_side.train, make_recipe(folder), folder, *make_batch(), 0)
    assert {name for name, *_ in shards} == own.keys()
    assert all(torch.equal(torch.from_numpy(values), own[name].float()) for name, _, _, values in shards)
    read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    assert all(torch.equal(torch.from_numpy(values), read[name]) for name, _, _, values in shards)


def refusal(folder, **recipe):
    """The one line with which every rank refuses."""
    ranks = {name: recipe.get(name, 1) for name in ("tensor", "pipeline", "data")}
    kinds_and_texts = run_ranks(rank_side.cannot_start, make_recipe(folder, **ranks), folder, **ranks)
    assert {kind for kind, _ in kinds_and_texts} == {"RecipeError"}
    return kinds_and_texts[0][1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture GPT2LMHeadModel is not supported; supported are "),
        ({"quantization_config": {"quant_method": "fp8"}}, "config.json has a quantization_config (fp8)"),
        ({"attention_bias": True}, "Qwen3ForCausalLM with attention_bias is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope_type dynamic"),
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
    assert "model.layers.0.mlp.gate_proj.weight has shape (48, 32), but its config.json implies (64, 32)" in refusal(folder)
    (folder / "model.safetensors").unlink()
    assert "holds neither model.safetensors nor" in refusal(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder_sparse_step": 0}, "config.json has decoder_sparse_step 0"),
        ({"hidden_size": -64}, "config.json has hidden_size -64"),
        ({"num_hidden_layers": 0}, "config.json has num_hidden_layers 0"),
        ({"num_local_experts": -8}, "has num_experts -8"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok 5, and a layer has 4 experts"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok 0"),
    ],
)
def test_sizes_that_no_model_has_are_refused(tmp_path, change, message):
    from asyncrl.learners.megatron.model_config import policy_config

    folder = make_model(tmp_path, "qwen3_moe")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(RecipeError) as caught:
        policy_config(folder, make_recipe(folder).learner)
    assert message in str(caught.value)


def test_quantised_weights_are_refused(tmp_path):
    """They are refused also where config.json does not say that they are quantised."""
    from asyncrl.learners.megatron.hugging_face import HuggingFaceTensors

    folder = make_model(tmp_path)
    name = "model.layers.2.mlp.down_proj.weight"
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {name: weights[name].to(torch.float8_e4m3fn)}, folder / "model.safetensors")
    with (
        HuggingFaceTensors(folder) as tensors,
        pytest.raises(RecipeError, match=f"tensor {name} .* as F8_E4M3, not as"),
    ):
        tensors.rectangle(name, (32, 48), (0, 0), (32, 48))


def test_a_layout_that_is_not_the_recipes_is_refused(tmp_path):
    folder = make_model(tmp_path)
    (kind, text), _ = run_ranks(rank_side.cannot_start, make_recipe(folder), folder, data=2)
    assert (kind, "is of the layout tensor 1, pipeline 1, data 2, but" in text) == ("ValueError", True)


def test_loading_reads_rectangles(tmp_path):
    """The reader that ranks use, without ranks."""
    from asyncrl.learners.megatron.hugging_face import HuggingFaceTensors

    folder = make_model(tmp_path)
    with safe_open(folder / "model.safetensors", "pt") as file:
        whole = file.get_tensor("model.layers.2.mlp.down_proj.weight")
    with HuggingFaceTensors(folder) as tensors:
        part = tensors.rectangle("model.layers.2.mlp.down_proj.weight", (32, 48), (0, 24), (32, 24))
    assert torch.equal(part, whole[:, 24:])
