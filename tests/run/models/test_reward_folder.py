import json
from pathlib import Path
from typing import Any

import pytest
from model_folders import SMALL, write_model, write_weights

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.reward import ModelRewardConfig
from asyncrl.run.dry_run.plan import Plan, make_plan
from asyncrl.run.models.further_models import check_vocabulary
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.recipe.compose import compose

ROOMY = Machine(memory=64 << 30, free=60 << 30, cores=8)
SHAPE = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 8,
    "max_position_embeddings": 1024,
    "architectures": ["Qwen2ForCausalLM"],
}
CLASSIFIER = {
    **SHAPE,
    "architectures": ["Qwen2ForSequenceClassification"],
    "id2label": {"0": "LABEL_0"},
    "pad_token_id": 3,
}
TOKENS = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<end>"}]}


def folder(path: Path, config: dict[str, Any], tokens: dict[str, Any] | None) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").touch()
    if tokens is not None:
        (path / "tokenizer.json").write_text(json.dumps(tokens))
    return path


def plan(tmp_path: Path, config: dict[str, Any], tokens: dict[str, Any] | None = TOKENS, policy: str = "") -> Plan:
    reward = folder(tmp_path / "reward", config, tokens)
    policy = policy or str(folder(tmp_path / "policy", SHAPE, TOKENS))
    overrides = [f"model.path={policy}", "+reward.kind=model", f"+reward.path={reward}"]
    return make_plan(compose("quickstart", overrides), ROOMY)


def sound(tmp_path: Path, *, head: bool = True) -> tuple[Path, Path]:
    """Folders of a policy and of a reward model that goes with it."""
    policy, reward = write_model(tmp_path / "policy", SMALL), write_model(tmp_path / "reward", SMALL)
    scoring = {**SMALL, "architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1, "pad_token_id": 3}
    (reward / "config.json").write_text(json.dumps(scoring))
    write_weights(reward, SMALL, **({"score.weight": (1, 64)} if head else {}))
    return policy, reward


def test_a_reward_model_in_an_object_store_is_refused_as_what_it_is(tmp_path: Path):
    policy = folder(tmp_path / "policy", SHAPE, TOKENS)
    overrides = [f"model.path={policy}", "+reward.kind=model", "+reward.path=s3://bucket/judge"]
    with pytest.raises(RecipeError, match=r"^reward.path: s3://bucket/judge: it is in an object store.*; copy it to a folder"):
        make_plan(compose("quickstart", overrides), ROOMY)


def plan_with(policy: Path, reward: Path) -> Plan:
    overrides = [f"model.path={policy}", "+reward.kind=model", f"+reward.path={reward}"]
    return make_plan(compose("quickstart", overrides), ROOMY)


def test_a_reward_model_is_a_process_of_the_plan(tmp_path: Path):
    plan = plan_with(*sound(tmp_path))
    (process,) = [process for process in plan.processes if process.role == "reward model"]
    assert process.count == 1


def test_a_reward_model_may_know_more_tokens_than_the_policy(tmp_path: Path):
    policy, reward = sound(tmp_path)
    tokens = json.loads((reward / "tokenizer.json").read_text())
    tokens["added_tokens"].append({**tokens["added_tokens"][0], "id": 511, "content": "<more>"})
    (reward / "tokenizer.json").write_text(json.dumps(tokens))
    plan_with(policy, reward)


def test_tokens_of_a_unigram_model_are_numbered_by_their_place(tmp_path: Path):
    unigram = {"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.0]]}, "added_tokens": TOKENS["added_tokens"]}
    check_vocabulary(
        ModelRewardConfig(path=str(folder(tmp_path / "reward", CLASSIFIER, unigram))), folder(tmp_path / "policy", SHAPE, TOKENS)
    )


def test_a_reward_model_without_a_head_or_with_half_a_file_is_refused(tmp_path: Path):
    policy, reward = sound(tmp_path, head=False)
    with pytest.raises(RecipeError, match=r"reward\.path: .* has no weights named \['score\.weight'\]"):
        plan_with(policy, reward)
    policy, reward = sound(tmp_path / "deeper")
    config = json.loads((reward / "config.json").read_text())
    (reward / "config.json").write_text(json.dumps({**config, "num_hidden_layers": config["num_hidden_layers"] + 1}))
    with pytest.raises(RecipeError, match=r"reward\.path: .* lacks tensor model\.layers\."):
        plan_with(policy, reward)
    weights = reward / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-2])
    with pytest.raises(RecipeError, match=r"reward\.path: .* is not a whole safetensors file"):
        plan_with(policy, reward)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, "none of which scores"),
        ({"architectures": []}, "none of which scores"),
        ({"id2label": {"0": "bad", "1": "good"}}, "2 labels"),
        ({"id2label": None}, "2 labels"),
        ({"num_labels": 0}, "0 labels"),
        ({"pad_token_id": None}, "pad_token_id"),
        ({"pad_token_id": -1}, "pad_token_id -1"),
        ({"pad_token_id": 8}, "pad_token_id 8, which is not one of the model's 8 tokens"),
        ({"max_position_embeddings": 255}, "255 positions"),
        ({"hidden_size": "many"}, "cannot read"),
    ],
)
def test_a_folder_that_cannot_reward_is_refused(tmp_path: Path, change: dict[str, Any], told: str):
    with pytest.raises(RecipeError, match=told) as caught:
        plan(tmp_path, {**CLASSIFIER, **change})
    assert caught.value.place == "reward.path"


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        ({"model": {"vocab": {"a": 1, "b": 0}}, "added_tokens": TOKENS["added_tokens"]}, "'a' has id 0 .* and id 1 in"),
        ({"model": {"vocab": {"a": 0, "b": 1}}}, "'<end>' has id 2 .* and no id in"),
        ({"model": {}}, "cannot read the tokens"),
        (None, "cannot read the tokens"),
    ],
)
def test_a_reward_model_that_reads_other_tokens_is_refused(tmp_path: Path, tokens: dict[str, Any] | None, told: str):
    with pytest.raises(RecipeError, match=told) as caught:
        plan(tmp_path, CLASSIFIER, tokens)
    assert caught.value.place == "reward.path"


def test_a_folder_must_be_there(tmp_path: Path):
    with pytest.raises(RecipeError, match="there is no") as caught:
        make_plan(compose("quickstart", ["+reward.kind=model", f"+reward.path={tmp_path / 'nowhere'}"]), ROOMY)
    assert caught.value.place == "reward.path"


def test_a_folder_without_safetensors_is_refused(tmp_path: Path):
    reward = folder(tmp_path / "reward", CLASSIFIER, TOKENS)
    (reward / "model.safetensors").rename(reward / "pytorch_model.bin")
    with pytest.raises(
        RecipeError, match=r"in pytorch_model.bin, a pickle, .* import Qwen2ForSequenceClassification as M"
    ) as caught:
        make_plan(compose("quickstart", ["+reward.kind=model", f"+reward.path={reward}"]), ROOMY)
    assert caught.value.place == "reward.path"
