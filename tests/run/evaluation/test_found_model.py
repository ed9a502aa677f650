"""Which versions of a run there are to evaluate."""

from pathlib import Path

import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.run.evaluation.found_model import Weights, find_model
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.recipe.compose import compose


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))
    for version in (20, 40):
        (folder.checkpoints / f"version-{version:06d}").mkdir(parents=True)
    (folder.checkpoints / ".version-000060.partial").mkdir()
    return folder


def trained(run: RunFolder, status: Status, steps: int) -> None:
    run.model.mkdir()
    (run.model / "config.json").write_text("{}")
    Summary(status=status, steps=steps).write(run.summary)


def test_a_completed_run_is_its_trained_model(run):
    trained(run, Status.COMPLETED, 40)
    model = find_model(str(run.path))
    assert (model.weights, model.path, model.version, model.name) == (
        Weights.FOLDER,
        run.model,
        40,
        f"{run.path.name} version 40",
    )
    assert find_model(str(run.path), 40) == model
    assert find_model(str(run.path), 20).path == run.checkpoints / "version-000020"


def test_a_run_that_has_not_completed_is_its_newest_checkpoint(run):
    assert find_model(str(run.path)).version == 40
    trained(run, Status.INTERRUPTED, 50)  # completed once, then made longer and interrupted
    model = find_model(str(run.path))
    assert (model.weights, model.version) == (Weights.CHECKPOINT, 40)


def test_a_run_without_checkpoints_is_its_beginning(tmp_path):
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))
    assert (find_model(str(folder.path)).weights, find_model(str(folder.path)).version) == (Weights.START, 0)
    trained(folder, Status.FAILED, 3)
    assert find_model(str(folder.path)).path == folder.model


def test_a_version_that_is_not_there_is_told_with_those_that_are(run):
    trained(run, Status.COMPLETED, 50)
    with pytest.raises(RecipeError) as refused:
        find_model(str(run.path), 7)
    there = "it has 0 (what it began with), 20 (a checkpoint), 40 (a checkpoint), 50 (the trained model)"
    assert str(refused.value) == f"--version: {run.path} does not have version 7; {there}"


@pytest.mark.parametrize(("word", "told"), [("nowhere", "does not exist"), (".", "has neither config.json nor recipe.yaml")])
def test_what_is_no_model_is_refused(word, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=told):
        find_model(word)


def test_only_runs_have_versions():
    assert find_model("tiny").weights is Weights.NAMED
    assert find_model("Qwen/Qwen3-0.6B").weights is Weights.NAMED
    with pytest.raises(RecipeError, match="'tiny' is no run, so it has no version 3"):
        find_model("tiny", 3)
