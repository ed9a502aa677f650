"""Models named by their id on the hub: taken from the cache of the machine, pinned to a commit, and refused with what to do."""

import asyncio
import json
import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest
from loopback_hub import loopback_hub
from model_folders import write_model
from planned import QWEN3_0_6B, ROOMY

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.hub import is_hub_id
from asyncrl.run.dry_run.plan import make_plan
from asyncrl.run.folder.config_yaml import resolved_yaml
from asyncrl.run.models.hub import model_folder
from asyncrl.run.models.model_sources import fetch_model, with_local_reference
from asyncrl.run.recipe.compose import compose

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, on a machine without a network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def cached(cache: Path, name: str = "acme/small", **changes: object) -> Path:
    """Lay a model into the cache as the hub's client does."""
    repository = cache / f"models--{name.replace('/', '--')}"
    folder = repository / "snapshots" / COMMIT
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return write_model(folder, QWEN3_0_6B | changes)


def test_an_id_in_the_cache_is_pinned_to_its_commit_and_stays_so(cache: Path, tmp_path: Path):
    folder = cached(cache)
    recipe = compose("quickstart", ["model.path=acme/small"])
    assert recipe.model.path == f"acme/small@{COMMIT}"
    assert make_plan(recipe, ROOMY).parameters == pytest.approx(596e6, rel=0.01)
    (tmp_path / "recipe.yaml").write_text(resolved_yaml(recipe))
    # The model of that name is another one by now: a resumed run has its own.
    newer = folder.with_name("f" * 40)
    shutil.copytree(folder, newer)
    (folder.parent.parent / "refs" / "main").write_text(newer.name)
    assert compose(str(tmp_path / "recipe.yaml")).model.path == recipe.model.path
    assert compose("quickstart", ["model.path=acme/small"]).model.path == f"acme/small@{newer.name}"
    assert model_folder(recipe.model.path, "model.path") == folder


def test_a_folder_of_that_name_comes_first(cache: Path, tmp_path: Path):
    cached(cache)
    assert is_hub_id("acme/small")
    shutil.copytree(cache / "models--acme--small" / "snapshots" / COMMIT, tmp_path / "acme" / "small")
    assert not is_hub_id("acme/small")
    assert compose("quickstart", ["model.path=acme/small"]).model.path == "acme/small"
    assert model_folder("acme/small", "model.path") == tmp_path / "acme" / "small"


@pytest.mark.parametrize("path", ["nowhere", "./acme/small", "/acme/small", "../small", "a/b/c"])
def test_other_paths_are_folders(path: str):
    assert not is_hub_id(path)


def test_links_in_a_circle_are_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("circle").symlink_to("circle")
    with pytest.raises(RecipeError, match=r"model\.path: cannot read circle/config\.json: .*Too many levels of symbolic links"):
        make_plan(compose("quickstart", ["model.path=circle"]), ROOMY)


@pytest.mark.parametrize("path", ["acme/small", "acme/small@main", f"acme/small@{COMMIT}"])
def test_what_is_not_in_the_cache_is_refused_with_what_to_do(path: str):
    with pytest.raises(RecipeError) as caught:
        make_plan(compose("quickstart", [f"model.path={path}"]), ROOMY)
    assert caught.value.place == "model.path"
    assert f"there is no folder {path!r}, the model acme/small is not in the cache of this machine" in caught.value.problem
    assert "is switched off (HF_HUB_OFFLINE)" in caught.value.problem
    assert "run `hf download acme/small --local-dir FOLDER`, copy FOLDER to this machine, and set model.path=FOLDER" in str(
        caught.value
    )


def test_a_hub_that_cannot_be_reached_is_told_apart_and_the_cache_serves(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(
        huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # between its five tries
    with pytest.raises(RecipeError, match="the Hugging Face hub cannot be reached"):
        compose("quickstart", ["model.path=acme/small"])
    cached(cache)
    assert compose("quickstart", ["model.path=acme/small"]).model.path == f"acme/small@{COMMIT}"


async def test_a_model_that_lacks_weights_is_refused(cache: Path):
    folder = cached(cache)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    with pytest.raises(RecipeError, match=r"model\.safetensors of acme/small is not in"):
        await fetch_model("acme/small", "model.path", 60.0)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(RecipeError, match=r"model-2\.safetensors of acme/small is not in"):
        await fetch_model("acme/small", "model.path", 60.0)


async def test_a_model_of_pickles_is_told_apart_from_one_that_is_not_fetched(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = cached(cache)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    pickles = r"acme/small has its weights in pytorch_model\.bin, a pickle, which can run code and is not read"
    with pytest.raises(RecipeError, match=pickles):
        await fetch_model("acme/small", "model.path", 60.0)
    with loopback_hub(tmp_path, monkeypatch) as hub:
        hub.publish("acme/small", COMMIT, {each.name: each.read_bytes() for each in folder.iterdir()})
        with pytest.raises(RecipeError, match=pickles) as caught:
            await fetch_model("acme/small", "model.path", 60.0)
        assert "run `hf download acme/small --local-dir FOLDER`, then python -c" in str(caught.value)
        hub.publish("acme/small", COMMIT, {"config.json": b"{}"})
        with pytest.raises(RecipeError, match=r"the Hugging Face hub has no model\.safetensors of acme/small"):
            await fetch_model("acme/small", "model.path", 60.0)


def test_a_reference_policy_is_checked_pinned_and_found(cache: Path, tmp_path: Path):
    cached(cache)
    named = cached(cache, "acme/teacher")
    kl = "+algorithm.kl={kind: in_loss, reference: acme/teacher}"
    recipe = compose("quickstart", ["model.path=acme/small", kl])
    assert recipe.algorithm.kl.reference == f"acme/teacher@{COMMIT}"
    make_plan(recipe, ROOMY)
    assert asyncio.run(with_local_reference(recipe)).algorithm.kl.reference == str(named)

    def refusal() -> RecipeError:
        with pytest.raises(RecipeError) as caught:
            make_plan(recipe, ROOMY)
        assert caught.value.place == "algorithm.kl.reference"
        return caught.value

    for changes, told in (
        ({"hidden_size": 2048}, "has hidden_size 2048, and the policy has 1024"),
        ({"vocab_size": 9}, "has vocab_size 9, and the policy has 151936"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "has architecture Qwen2ForCausalLM, and the policy has Qwen3ForCausalLM"),
        ({"rope_theta": 5e5}, "has rope_theta 500000.0, and the policy has 10000.0"),
        ({"hidden_act": "gelu"}, "has hidden_act gelu, and the policy has silu"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "has rope_type linear, and the policy has default"),
        ({"architectures": ["Gemma"]}, "architecture Gemma is not supported"),
    ):
        (named / "config.json").write_text(json.dumps(QWEN3_0_6B | changes))
        assert told in refusal().problem
    (named / "config.json").write_text(json.dumps(QWEN3_0_6B))
    tokens = json.loads((named / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"]
    vocabulary["!"], vocabulary["#"] = vocabulary["#"], vocabulary["!"]
    (named / "tokenizer.json").write_text(json.dumps(tokens))
    assert "token '!' has id" in refusal().problem
    assert "in the tokenizer of acme/teacher" in refusal().problem
    shutil.rmtree(cache / "models--acme--teacher")
    assert "is not in the cache of this machine" in refusal().problem


def test_a_reference_policy_that_is_no_folder_is_refused():
    recipe = compose("quickstart", ["+algorithm.kl={kind: in_reward, reference: nowhere}"])
    with pytest.raises(RecipeError, match=r"algorithm\.kl\.reference: there is no nowhere/config\.json"):
        make_plan(recipe, ROOMY)
