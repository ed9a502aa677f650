"""``asyncrl push`` as a user calls it: processes of their own, and the hub's own client on both sides."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from local_hub import READS, WRITES, LocalHub, local_hub
from pushed_run import make_run

from asyncrl.cli.main import main
from asyncrl.cli.outcome import ExitCode
from asyncrl.run.folder.run_folder import RunFolder

FILES = {"README.md", "config.json", "model.safetensors", "tokenizer_config.json"}


def asyncrl(*arguments: object, hub: LocalHub, token: str = WRITES, home: Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "asyncrl.cli.main", *map(str, arguments), hub=hub, token=token, home=home)


def python(*arguments: str, hub: LocalHub, home: Path, token: str = WRITES) -> subprocess.CompletedProcess[str]:
    told = {"HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=os.environ | told, capture_output=True, text=True, timeout=240, check=False)


def test_a_run_is_pushed_and_found_again(tmp_path):
    run = make_run(tmp_path / "ann-private", "tracking.trajectories={keep: all}")
    with local_hub() as hub:
        pushed = asyncrl("push", run.path, "me/calc", "--private", hub=hub, home=tmp_path / "home")
        assert pushed.returncode == 0, pushed.stderr
        assert f"Pushed: {hub.url}/me/calc/commit/" in pushed.stdout
        files = hub.repositories["me/calc"]
        assert set(files) == FILES | {".gitattributes", "adapter/adapter_config.json"}
        assert json.loads(files["adapter/adapter_config.json"]) == {"r": 4}
        assert files["model.safetensors"] == b"weights"
        assert hub.private == {"me/calc"}
        assert hub.messages == [f"asyncrl: {run.path.name} version 60"]
        assert not [name for name, content in files.items() if b"ann-private" in content or WRITES.encode() in content]
        assert b"Qwen/Qwen3-0.6B" in files["tokenizer_config.json"]  # the id of a model is no place on this machine
        load = "from huggingface_hub import ModelCard; print(ModelCard.load('me/calc').data.eval_results[0].metric_value)"
        assert python("-c", load, hub=hub, home=tmp_path / "home").stdout == "0.9\n"


def test_a_refused_push_writes_nothing(tmp_path):
    run = make_run(tmp_path)
    with local_hub() as hub:
        refused = asyncrl("push", run.path, "me/calc", hub=hub, token=READS, home=tmp_path / "home")
        assert refused.returncode == ExitCode.REFUSED
        assert "HUB_ID: the token may not write models of 'me'" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert hub.repositories == {}


@pytest.mark.parametrize("stored", [False, True])
def test_a_folder_shows_what_would_be_pushed(tmp_path, monkeypatch, capsys, stored):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, to = make_run(tmp_path), tmp_path / "to"
    assert main(["push", f"file://{run.path}" if stored else str(run.path), "me/calc", "--to", str(to)]) == ExitCode.COMPLETED
    assert "Written, and nothing was pushed" in capsys.readouterr().out
    assert {file.name for file in to.iterdir()} == FILES | {"adapter"}
    assert ModelCard.load(to / "README.md").data.tags == ["asyncrl", "reinforcement-learning"]
    assert main(["push", str(run.path), "me/calc", "--to", str(to)]) == ExitCode.REFUSED
    assert "exists already" in capsys.readouterr().err


def without_model(run: RunFolder) -> None:
    shutil.rmtree(run.model)


@pytest.mark.parametrize(
    ("hub_id", "change", "told"),
    [
        ("calc", None, "HUB_ID: 'calc' does not name an owner and a model; name it OWNER/NAME"),
        ("me/calc", without_model, "is what the run began with: it has no trained model yet; let it train up to its first"),
        ("me/calc", lambda run: run.recipe.unlink(), "is not a run folder"),
    ],
)
def test_what_cannot_be_pushed(tmp_path, capsys, hub_id, change, told):
    run = make_run(tmp_path)
    if change is not None:
        change(run)
    assert main(["push", str(run.path), hub_id, "--to", str(tmp_path / "to")]) == ExitCode.REFUSED
    assert told in capsys.readouterr().err
    assert not (tmp_path / "to").exists()
