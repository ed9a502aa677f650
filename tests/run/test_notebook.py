"""docs/asyncrl.ipynb, executed as a notebook does it: cell by cell, under a running event loop. A whole run and an evaluation."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from whole_run import small_model

from asyncrl.run.evaluation_summary import EvaluationSummary
from asyncrl.run.summary import Status

NOTEBOOK = Path(__file__).parents[2] / "docs" / "asyncrl.ipynb"
MOST_OUTPUT = 20_000
STEPS = 4

pytestmark = pytest.mark.timeout(540)

EXECUTE = """
import asyncio, json, sys

async def execute():
    namespace = {}
    for cell in json.loads(sys.stdin.read()):
        exec(compile(cell, "<cell>", "exec"), namespace)
    return namespace

namespace = asyncio.run(execute())
"""

CHECKS = """
import asyncrl
from asyncrl.core.recipe.schema import Recipe

assert repr(run) == f"asyncrl.Run({str(run.path)!r})"
assert isinstance(run.recipe, Recipe) and run.recipe.steps == 4
assert run.summary.steps == 4 and (run.model_path / "config.json").is_file()
steps = run.metrics().filter(run.metrics()["name"].combine_chunks() == None)
"""


def cells(*overrides: str) -> list[str]:
    """The notebook's code, with the parameters of a small run."""
    found = []
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            found.append("".join(cell["source"]))
            if "parameters" in cell["metadata"].get("tags", []):
                found.append(f"overrides = {list(overrides)!r}\nversions = [2]")
    return found


def test_the_notebook_s_outputs_are_kept_and_small():
    outputs = [cell["outputs"] for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert sum(map(bool, outputs)) >= 5
    assert len(json.dumps(outputs)) < MOST_OUTPUT


def test_every_cell_runs(tmp_path):
    small = [
        f"model.path={small_model(tmp_path / 'tiny')}",
        f"run_dir={tmp_path}",
        "batch.groups_per_step=4",
        "batch.group_size=4",
    ]
    small += ["tasks.train=100", "tasks.evaluation=8", "evaluation.every=2", "sampling.max_turn_tokens=16"]
    small += [f"steps={STEPS}", "checkpoint.every=2", "generators.count=1"]
    with subprocess.Popen(
        [sys.executable, "-c", EXECUTE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        output, _ = process.communicate(json.dumps([*cells(*small), CHECKS]), timeout=400)
    assert process.returncode == 0, output
    print(output)
