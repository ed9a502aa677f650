"""docs/asyncrl.ipynb, executed cell by cell under a running event loop: a whole run and an evaluation from Python."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from whole_run import small_model

import asyncrl
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.summary import Status

NOTEBOOK = Path(__file__).parents[2] / "docs" / "asyncrl.ipynb"
MOST_OUTPUT = 20_000
STEPS, EVALUATED = 4, 2

pytestmark = pytest.mark.timeout(540)

EXECUTE = """
import asyncio, json, sys

async def execute():
    namespace = {}
    for cell in json.loads(sys.stdin.read()):
        exec(compile(cell, "<cell>", "exec"), namespace)
    return namespace

namespace = asyncio.run(execute())
print(json.dumps([str(namespace["run"].path), str(namespace["evaluation"].path)]))
"""


def code_cells() -> list[dict]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def with_parameters(*lines: str) -> list[str]:
    """The notebook's code, with other parameters than its own."""
    sources = []
    for cell in code_cells():
        sources.append("".join(cell["source"]))
        if "parameters" in cell["metadata"].get("tags", []):
            sources.append("\n".join(lines))
    assert len(sources) == len(code_cells()) + 1
    return sources


def test_its_outputs_are_kept_and_small():
    outputs = [cell["outputs"] for cell in code_cells()]
    assert sum(map(bool, outputs)) >= 5
    assert len(json.dumps(outputs)) < MOST_OUTPUT


def test_every_cell_runs_and_the_run_and_the_evaluation_can_be_read(tmp_path):
    model = small_model(tmp_path / "tiny")
    runs = tmp_path / "runs"
    small = [f"model.path={model}", f"run_dir={runs}", "batch.groups_per_step=4", "batch.group_size=4", "generators.count=1"]
    small += ["tasks.train=100", "tasks.evaluation=8", "evaluation.every=2", "sampling.max_turn_tokens=16"]
    small += [f"steps={STEPS}", f"checkpoint.every={EVALUATED}"]
    cells = with_parameters(f"overrides = {small!r}", f"versions = [{EVALUATED}]")
    command = [sys.executable, "-c", EXECUTE]
    done = subprocess.run(command, input=json.dumps(cells), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    run_path, evaluation_path = json.loads(done.stdout.splitlines()[-1])
    check_run(asyncrl.Run(run_path))
    check_evaluation(asyncrl.Evaluation(evaluation_path), asyncrl.Run(run_path))
    assert f"training step {STEPS}/{STEPS}" in done.stdout, "its lines are shown"
    assert {path for path in runs.iterdir() if path.is_dir()} == {Path(run_path), Path(evaluation_path)}


def check_run(run: asyncrl.Run) -> None:
    assert repr(run) == f"asyncrl.Run({str(run.path)!r})"
    assert (run.summary.status, run.summary.steps) == (Status.COMPLETED, STEPS)
    assert isinstance(run.recipe, Recipe)
    assert run.recipe.steps == STEPS
    assert (run.model_path / "model.safetensors").is_file()
    metrics = run.metrics()
    assert metrics.column_names == ["step", "name", "value"]
    rewards = {row["step"]: row["value"] for row in metrics.to_pylist() if row["name"] == "reward/mean"}
    assert sorted(rewards) == [1, 2, 3, 4]
    trained, of_one_step = run.trajectories(kind="train"), run.trajectories(step=3, kind="train")
    assert set(trained["step"].to_pylist()) == {1, 2, 3, 4}
    assert set(of_one_step["step"].to_pylist()) == {3}
    evaluated = run.trajectories(step=EVALUATED, kind="evaluation")
    assert set(evaluated["version"].to_pylist()) == {EVALUATED}
    assert len(run.trajectories()) == len(trained) + len(run.trajectories(kind="evaluation"))
    with pytest.raises(ValueError, match="'training' is not a valid Kind"):
        run.trajectories(kind="training")


def check_evaluation(evaluation: asyncrl.Evaluation, run: asyncrl.Run) -> None:
    """Of the version of a checkpoint, which was exported for it and is not kept."""
    summary = evaluation.summary
    assert (summary.status, summary.samples, summary.temperature) == (Status.COMPLETED, 4, 1.0)
    (model,) = summary.models
    assert (model.version, model.path) == (EVALUATED, str(run.path / "checkpoints" / f"version-{EVALUATED:06d}"))
    assert (model.scores.tasks, model.scores.episodes, model.missing) == (8, 32, 0)
    episodes = evaluation.trajectories()
    assert set(episodes["model"].to_pylist()) == {model.model} == {f"{run.path.name} version {EVALUATED}"}
    played = list(zip(episodes["task_id"].to_pylist(), episodes["sample_index"].to_pylist(), strict=True))
    assert len(set(played)) == len(played) == 32
    assert set(episodes["source"].to_pylist()) == {"generated"}
    assert sum(episodes["reward"].to_pylist()) / 32 == pytest.approx(model.scores.mean.value)
    assert not (evaluation.path / "weights").exists()
    with pytest.raises(asyncrl.NotThere, match="has no model 'other'; it has"):
        evaluation.trajectories("other")
