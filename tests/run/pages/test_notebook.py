"""docs/asyncrl.ipynb, executed cell by cell under a running event loop: a whole run and an evaluation from Python."""

import json
import re
from pathlib import Path

import pytest
from ended_run import OVERRIDES, STEPS, check_ended
from whole_run import Run, small_run

import asyncrl
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.measures.summary import Status
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.recipe.compose import compose_for

NOTEBOOK = Path(__file__).parents[3] / "docs" / "asyncrl.ipynb"
REFUSALS = (
    "RecipeError: Recipe.stepss: unknown key; did you mean `Recipe.steps`",
    "RecipeError: LearnerConfig.lrr: unknown key; did you mean `LearnerConfig.lr`",
    "RecipeError: .*did you mean `quickstart`",
)
"""What a kernel says of the cells that are refused."""
MOST_OUTPUT = 20_000
EVALUATED = 2

pytestmark = pytest.mark.timeout(900)

EXECUTE = """
import asyncio, json, sys

async def execute():
    namespace = {}
    for cell in json.loads(sys.argv[1]):
        exec(compile(cell, "<cell>", "exec"), namespace)

asyncio.run(execute())
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


def test_its_outputs_are_those_of_this_version():
    """``make notebook`` writes them; a launch that shows other lines now makes them old."""
    outputs = ["".join("".join(output["text"]) for output in cell["outputs"]) for cell in code_cells()]
    launched = next(text for text in outputs if text.startswith("Chosen for this machine"))
    _, choices = compose_for(Machine.for_runs(), "quickstart", [])
    chosen = launched.splitlines()[1 : len(choices) + 1]
    assert [line.split()[0] for line in chosen] == [choice.key for choice in choices]


def test_every_cell_runs_and_the_run_and_the_evaluation_can_be_read(tiny_model, tmp_path):
    """The run is whole as well: its checks are those of ``ended_run``."""
    runs = tmp_path / "runs"
    runs.mkdir()
    small = [*small_run(tiny_model, runs), *OVERRIDES, f"checkpoint.every={EVALUATED}"]
    executed = Run(runs, "-c", EXECUTE, json.dumps(with_parameters(f"overrides = {small!r}", f"versions = [{EVALUATED}]")))
    assert executed.end(800) == 0, executed.output
    (evaluated,) = runs.glob("evaluation-*")
    check_run(asyncrl.Run(executed.folder))
    check_evaluation(asyncrl.Evaluation(evaluated), asyncrl.Run(executed.folder))
    assert f"training step {STEPS}/{STEPS}" in executed.output, "its lines are shown"
    assert {path for path in runs.iterdir() if path.is_dir()} == {executed.folder, evaluated, runs / "mlflow-artifacts"}
    check_ended(executed, tiny_model, tmp_path)


def test_a_kernel_shows_what_its_cells_print_and_what_is_wrong(tmp_path):
    """Where Jupyter's kernel is installed: ``make notebook`` installs it beside what the tests need."""
    for needed in ("ipykernel", "nbclient"):
        pytest.importorskip(needed, reason=f"{needed} is not installed: requirements/jupyter.txt")
    from nbformat import v4

    from docs.notebook import run_cells

    cells = [
        "import os\nprint(os.getcwd() + '/runs')",
        "import asyncrl",
        "asyncrl.Recipe(name='mine', stepss=3)",
        "asyncrl.sections.LearnerConfig(lrr=1e-4)",
        "asyncrl.launch('quickstarts')",
    ]
    kernel = {"name": "python3", "display_name": "Python 3"}
    notebook = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in cells], metadata={"kernelspec": kernel})
    for cell in notebook.cells:
        cell.metadata.tags = ["raises-exception"]
    run_cells(notebook, str(tmp_path))
    where, imported, *refused = (cell.outputs for cell in notebook.cells)
    assert [(output.name, output.text) for output in where] == [("stdout", "runs\n")]
    assert imported == []
    shown = ["\n".join(output.traceback) for (output,) in refused]
    for cell, text, told in zip(cells[2:], shown, REFUSALS, strict=True):
        assert re.search(told, text)
        assert cell in text
        assert len(text.splitlines()) <= 9, f"pages of our code are shown: {text}"


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
    with pytest.raises(asyncrl.RecipeError, match="there are no episodes of kind 'training'; give train or evaluation"):
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
