"""A policy version becomes a Hugging Face folder, whole or not at all."""

import json
import stat
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from model_folders import SMALL
from rich.console import Console

from asyncrl.core.errors import ComponentFailed, RecipeError
from asyncrl.run.evaluation import version_export
from asyncrl.run.evaluation.found_model import find_model
from asyncrl.run.evaluation.version_export import export_version
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.recipe.compose import compose
from asyncrl.run.views.live_view import LiveView


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run that began with a model folder, and has trained another."""
    start = tmp_path / "start"
    start.mkdir()
    (start / "config.json").write_text(json.dumps(SMALL | {"what": "start"}))
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}", f"model.path={start}"]))
    folder.model.mkdir()
    (folder.model / "config.json").write_text('{"what": "trained"}')
    Summary(status=Status.COMPLETED, steps=4).write(folder.summary)
    return folder


def export(run: RunFolder, version: int | None, to: Path) -> None:
    with LiveView(Console(file=StringIO()), "export") as view:
        export_version(find_model(str(run.path), version), to, view)


@pytest.mark.parametrize(("version", "what"), [(None, "trained"), (4, "trained"), (0, "start")])
def test_a_version_is_copied_whole(run, tmp_path, version, what):
    export(run, version, tmp_path / "to")
    assert json.loads((tmp_path / "to" / "config.json").read_text())["what"] == what
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".to")]


def test_a_version_that_nobody_may_write_is_copied_so_that_one_may(run, tmp_path):
    for path in ((start := tmp_path / "start") / "config.json", start):
        path.chmod(0o555)  # a store that many share
    export(run, 0, tmp_path / "to")
    assert all(path.stat().st_mode & stat.S_IWUSR for path in (tmp_path / "to", tmp_path / "to" / "config.json"))


def test_the_adapter_of_a_model_of_the_hub_names_that(run, tmp_path, monkeypatch):
    named = compose(str(run.recipe))
    of_hub = msgspec.structs.replace(named.model, path=f"acme/small@{'a' * 40}")
    monkeypatch.setattr(version_export, "recipe_that_trained", lambda _: msgspec.structs.replace(named, model=of_hub))
    (run.model / "adapter").mkdir()
    config = {"r": 4, "base_model_name_or_path": str(tmp_path / "hub" / "snapshots" / "aaaa")}
    (run.model / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    export(run, None, tmp_path / "to")
    exported = json.loads((tmp_path / "to" / "adapter" / "adapter_config.json").read_text())
    assert exported == {"r": 4, "base_model_name_or_path": "acme/small", "revision": "a" * 40}


def test_what_is_there_is_not_replaced(run, tmp_path):
    (tmp_path / "to").mkdir()
    with pytest.raises(RecipeError, match=r"--to: .*to exists already; name a folder that does not exist yet"):
        export(run, None, tmp_path / "to")
    with pytest.raises(RecipeError, match=r"--to: .*is no folder; make it first"):
        export(run, None, tmp_path / "nowhere" / "to")


def test_a_failed_export_leaves_nothing(run, tmp_path, monkeypatch):
    async def damaged(checkpoint, recipe, model_path, folder):
        folder.mkdir()
        raise ComponentFailed("the checkpoint is damaged")

    (run.checkpoints / "version-000002").mkdir(parents=True)
    monkeypatch.setattr(version_export, "export_checkpoint", damaged)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ComponentFailed, match="damaged"):
        export(run, 2, tmp_path / "to")
    assert sorted(tmp_path.iterdir()) == before
