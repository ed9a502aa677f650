"""Checkpoints that transformers has saved in other ways than most: taken as they are, dequantised, or refused with what helps."""

import asyncio
import hashlib
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from foreign_folders import change_config
from fork_server import WITH_TRANSFORMERS
from learner_samples import make_rounded_but_for_its_bias
from model_folders import write_tokenizer
from planned import ROOMY
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from asyncrl.core.errors import RecipeError
from asyncrl.run.dry_run.plan import make_plan
from asyncrl.run.models.dequantised import plain_folder
from asyncrl.run.models.model_identity import model_files
from asyncrl.run.models.model_shape import read_shape
from asyncrl.run.models.model_weights import check_folder, check_output, check_played
from asyncrl.run.recipe.compose import compose

Quantise = Callable[[str, Tensor], tuple[dict[str, Tensor], Tensor]]
SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 128,
    "max_position_embeddings": 1024,
}


def saved(folder: Path, **changes: object) -> Path:
    """A model as transformers saves it in bfloat16, with the tokenizer of the tiny model, which has fewer tokens than it."""
    torch.manual_seed(0)
    of_experts = "num_local_experts" in changes
    kind, model = (GptOssConfig, GptOssForCausalLM) if of_experts else (Qwen3Config, Qwen3ForCausalLM)
    config = kind(**(SIZES | {"tie_word_embeddings": not of_experts} | changes), dtype="bfloat16")
    model(config).bfloat16().save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def planned(folder: Path) -> tuple[str, ...]:
    """The plan's remarks on the model in ``folder``."""
    recipe = compose("quickstart", [f"model.path={folder}", f"run_dir={folder}/runs"])
    return tuple(remark for remark in make_plan(recipe, ROOMY).remarks if remark.startswith("model.path"))


def run(command: str) -> None:
    """Run the command that ends a text, in a process forked from one that has imported transformers."""
    program, option, code = shlex.split(command[command.index("python -c") :])
    assert (program, option) == ("python", "-c")
    process = WITH_TRANSFORMERS.Process(target=exec, args=(code, {}))
    process.start()
    process.join(240)
    assert process.exitcode == 0


def refused(folder: Path) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        planned(folder)
    return caught.value


def test_a_pickled_model_is_taken_once_the_command_of_its_refusal_has_run(tmp_path: Path):
    weights = load_file(saved(tmp_path) / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    run(refused(tmp_path).remedy)
    assert planned(tmp_path) == ()
    converted = load_file(tmp_path / "model.safetensors")
    assert converted.keys() == weights.keys()
    assert all(torch.equal(converted[name], weights[name]) for name in weights)


def shard(folder: Path) -> None:
    """Save the model in ``folder`` in several files with an index."""
    AutoModelForCausalLM.from_pretrained(folder, dtype="auto").save_pretrained(folder, max_shard_size="60KB")
    (folder / "model.safetensors").unlink(missing_ok=True)


@pytest.mark.parametrize("sharded", [False, True])
def test_added_tokens_are_refused_until_the_command_of_the_refusal_has_made_embeddings(tmp_path: Path, sharded: bool):
    tokenizer = AutoTokenizer.from_pretrained(saved(tmp_path))
    if sharded:
        shard(tmp_path)
    tokens = [f"<extra_{number}>" for number in range(512)]
    tokenizer.add_tokens(tokens, special_tokens=True)
    tokenizer.chat_template = "{{- '<extra_511>' -}}" + tokenizer.chat_template
    tokenizer.save_pretrained(tmp_path)
    last = tokenizer.convert_tokens_to_ids("<extra_511>")
    error = refused(tmp_path)
    assert f"has tokens up to {last} ('<extra_511>'), and the model has embeddings of 512" in error.problem
    run(error.remedy)
    assert planned(tmp_path) == ()


@pytest.mark.parametrize("differs", [False, True])
def test_an_output_layer_beside_the_embedding_to_which_it_is_tied(tmp_path: Path, differs: bool):
    file = saved(tmp_path) / "model.safetensors"
    weights = load_file(file)
    output = weights["model.embed_tokens.weight"].clone()
    output[-1, -1] += differs
    save_file({**weights, "lm_head.weight": output}, file, metadata={"format": "pt"})
    if not differs:
        assert planned(tmp_path) == ()
        return
    error = refused(tmp_path)
    assert f"lm_head.weight in {file} differs from model.embed_tokens.weight in {file}" in error.problem
    with pytest.raises(RecipeError, match="differs from"):
        check_played(tmp_path)
    change_config(tmp_path, tie_word_embeddings=False)  # as the remedy says
    assert planned(tmp_path) == ()


@pytest.mark.parametrize("shards", ["left", "removed"])
def test_an_index_of_other_weights_than_those_beside_it_is_refused(tmp_path: Path, shards: str):
    """transformers reads the one file, and engines those of the index, which stays behind when a model is saved anew."""
    whole = (saved(tmp_path) / "model.safetensors").read_bytes()
    shard(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(whole)
    if shards == "removed":
        for file in tmp_path.glob("model-*.safetensors"):
            file.unlink()
    error = refused(tmp_path)
    assert error.problem.startswith(f"{tmp_path} holds model.safetensors, which transformers reads, and model.safetensors.index")
    with pytest.raises(RecipeError, match="which transformers reads"):
        check_played(tmp_path)
    for file in (tmp_path / "model.safetensors.index.json", *tmp_path.glob("model-*.safetensors")):  # as the remedy says
        file.unlink(missing_ok=True)
    assert planned(tmp_path) == ()


@pytest.mark.parametrize("beside_weights", [True, False])
def test_an_adapter_is_refused_because_nobody_would_add_it_to_the_weights(tmp_path: Path, beside_weights: bool):
    shard(saved(tmp_path))
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "acme/base"}')
    if not beside_weights:
        (tmp_path / "config.json").unlink()
    error = refused(tmp_path)
    assert error.problem.startswith(f"{tmp_path} holds adapter_config.json: an adapter of PEFT")
    assert "merge_and_unload" in error.remedy
    if beside_weights:
        (tmp_path / "adapter_config.json").rename(tmp_path.parent / f"{tmp_path.name}.json")  # as the remedy says
        assert planned(tmp_path) == ()


@pytest.mark.parametrize("told", ["missing", "cut"])
def test_shards_that_are_not_whole_are_refused(tmp_path: Path, told: str):
    saved(tmp_path)
    shard(tmp_path)
    assert planned(tmp_path) == ()
    second = sorted(tmp_path.glob("*.safetensors"))[1]
    if told == "missing":
        second.unlink()
    else:
        second.write_bytes(second.read_bytes()[:-1])
    assert refused(tmp_path).problem.startswith(
        f"there is no {second}, which" if told == "missing" else f"{second}, of {second.stat().st_size:,} bytes, is not a whole"
    )


def by_channel(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scale = (weight.float().abs().amax(1, keepdim=True) / 448).bfloat16()
    stored = (weight.float() / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {name: stored, f"{name}_scale": scale}, stored.float() * scale.float()


def by_block(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    stored = weight.float() / 0.001
    stored = stored.clamp(-448, 448).to(torch.float8_e4m3fn)
    return {name: stored, f"{name}_scale_inv": torch.full((1, 1), 0.001)}, stored.float() * 0.001


FOUR_BITS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def by_microscale(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Any weights of the same shape: 32 of an output's follow each other, two to a byte, and have a power of 2 for a scale."""
    experts, inputs, outputs = weight.shape
    blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
    scales = torch.randint(118, 124, blocks.shape[:-1], dtype=torch.uint8)
    both = torch.stack([FOUR_BITS[(blocks % 16).long()], FOUR_BITS[(blocks // 16).long()]], -1).flatten(-2)
    found = both * torch.exp2(scales.float() - 127).unsqueeze(-1)
    return {f"{name}_blocks": blocks, f"{name}_scales": scales}, found.flatten(2).transpose(1, 2)


CHANNELS = {
    "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False,
}  # fmt: skip
TOKENS = CHANNELS | {"strategy": "token", "dynamic": True}
METHODS: dict[str, tuple[Quantise, dict[str, object]]] = {
    "compressed-tensors": (
        by_channel,
        {
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": CHANNELS, "input_activations": TOKENS}},
            "format": "float-quantized",
            "ignore": ["lm_head"],
            "quantization_status": "compressed",
        },
    ),
    "fp8": (by_block, {"activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}),
    "mxfp4": (by_microscale, {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]}),
}


@pytest.mark.parametrize("method", METHODS)
def test_quantised_weights_are_dequantised_into_a_folder_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
):
    """What the plan takes, ranks and engines find in that folder: each tensor as its scales make it."""
    if method == "fp8":
        pytest.importorskip("accelerate", reason="transformers dequantises fp8 only with accelerate")
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    folder = saved(tmp_path / "model", **({"num_local_experts": 4, "num_experts_per_tok": 2} if method == "mxfp4" else {}))
    endings = ("experts.gate_up_proj", "experts.down_proj") if method == "mxfp4" else ("_proj.weight",)
    quantise, how = METHODS[method]
    stored, expected = {}, load_file(folder / "model.safetensors")
    for name, weight in list(expected.items()):
        parts = {name: weight}
        if name.endswith(endings):
            parts, expected[name] = quantise(name, weight)
        stored |= parts
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    change_config(folder, quantization_config={"quant_method": method, **how})
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    (remark,) = planned(folder)
    assert f"its weights are quantised ({method}): the run trains and plays a dequantised copy" in remark

    made = asyncio.run(plain_folder(folder, 120))
    assert made.parent == tmp_path / "cache" / "dequantised"
    assert [each.name for each in made.parent.iterdir()] == [made.name]
    written = load_file(made / "model.safetensors")
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name].bfloat16()) for name in expected)
    check_folder(made, read_shape(str(made)), "model.path")
    assert planned(made) == ()
    assert (made / "generation_config.json").read_text() == '{"eos_token_id": [1, 2]}'
    assert (made / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    before = (made / "model.safetensors").stat().st_ino
    assert asyncio.run(plain_folder(folder, 120)) == made
    assert (made / "model.safetensors").stat().st_ino == before
    change_config(folder, rope_theta=1e5)
    assert asyncio.run(plain_folder(made, 120)) == made


def test_the_bias_by_which_routers_choose_experts_stays_float32_where_weights_are_dequantised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    folder = make_rounded_but_for_its_bias(tmp_path / "model")
    stored, expected = {}, load_file(folder / "model.safetensors")
    for name, weight in list(expected.items()):
        parts = {name: weight}
        if ".self_attn." in name and name.endswith("_proj.weight"):
            parts, expected[name] = by_channel(name, weight)
        stored |= parts
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    method, how = "compressed-tensors", METHODS["compressed-tensors"][1]
    change_config(folder, quantization_config={"quant_method": method, **how, "ignore": ["lm_head", "re:.*mlp.*"]})
    rounded = hashlib.blake2b(msgspec.msgpack.encode(model_files(folder)), digest_size=16).hexdigest()
    (tmp_path / "cache" / "dequantised" / rounded).mkdir(parents=True)  # as earlier versions called theirs
    written = load_file(asyncio.run(plain_folder(folder, 120)) / "model.safetensors")
    assert written.keys() == expected.keys()
    for name, tensor in written.items():
        assert tensor.dtype is (torch.float32 if name.endswith("e_score_correction_bias") else torch.bfloat16)
        assert torch.equal(tensor, expected[name].to(tensor.dtype))


def test_a_model_that_is_only_played_needs_an_output_layer(tmp_path: Path):
    """Also one that the learner does not know: its engine would sample from zeros, and say nothing."""
    saved(tmp_path)
    check_played(tmp_path)
    change_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(RecipeError, match=r"lacks tensor lm_head\.weight"):
        check_played(tmp_path)
    change_config(tmp_path, architectures=["GraniteForCausalLM"], model_type="granite")
    check_played(tmp_path)
    with pytest.raises(RecipeError, match=r"lacks tensor lm_head\.weight, and its config\.json does not tie it"):
        check_output(tmp_path, tied=False)
    check_output(tmp_path, tied=True)
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "lm_head.qweight": torch.zeros(2)}, file, metadata={"format": "pt"})
    check_output(tmp_path, tied=False)


def test_a_tied_model_that_engines_cannot_tie_is_refused(tmp_path: Path):
    """In the plan, before an engine would refuse version 0; a model that is only played is taken if the copy lies beside it."""
    config = Glm4MoeConfig(
        **SIZES,
        **{"tie_word_embeddings": True, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        **{"partial_rotary_factor": 0.5, "use_qk_norm": True, "num_mtp_layers": 0},
    )
    Glm4MoeForCausalLM(config).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    change_config(tmp_path, partial_rotary_factor=0.5)
    problem = r"ties lm_head\.weight to model\.embed_tokens\.weight .*, and vLLM's Glm4MoeForCausalLM cannot"
    with pytest.raises(RecipeError, match=problem):
        planned(tmp_path)
    with pytest.raises(RecipeError, match=problem):
        check_played(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    save_file(weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}, file, metadata={"format": "pt"})
    check_played(tmp_path)
    change_config(tmp_path, tie_word_embeddings=False)
    planned(tmp_path)


def test_a_vocabulary_that_is_padded_is_taken(tmp_path: Path):
    saved(tmp_path, vocab_size=640)
    assert max(AutoTokenizer.from_pretrained(tmp_path).get_vocab().values()) < 512
    assert planned(tmp_path) == ()
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == 640
