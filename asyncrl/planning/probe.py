"""Runs a recipe for a short while, so that rates can be fitted: what ``asyncrl plan --probe`` does.

The run is the real one, with a smaller batch and one engine: its loads pass through all sizes while the pipeline fills and
empties. What always holds: it is told to end after :data:`MOST_S`, and killed if it has not ended soon after; its
folder, which lies beside other runs, is kept.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.storage.address import local_run_dir

STEPS = 12
"""Training steps of a probe."""
LEAST_GROUPS = 4
MOST_S = 110.0
"""Seconds after which a probe is stopped; what it has done until then counts."""
_ENDING_S = 20.0
_TOLD = 4000
"""Characters of a failed run's output that are shown."""


def probe(recipe: Recipe, source: str, overrides: Sequence[str], note: Callable[[str], None]) -> Path:
    """Run ``recipe`` for a short while, and return the run's folder.

    Args:
        source: the path or name of the recipe, with its ``overrides``.
        note: is told where the run's output goes.

    Raises:
        RecipeError: the run could not be launched, or failed.
    """
    groups = max(LEAST_GROUPS, recipe.learner.data_parallel, recipe.batch.groups_per_step // 4)
    keys = {
        "name": f"{recipe.name}-probe",
        "steps": STEPS,
        "batch.groups_per_step": min(groups, recipe.batch.groups_per_step),
        "generators.count": 1,
        "buffer.pipeline_depth": min(1, recipe.buffer.max_staleness),
        "evaluation.every": STEPS,
        "checkpoint.every": STEPS,
        "tracking.trajectories.keep": "all",
        "tracking.trajectories.dir": "null",
        "checkpoint.dir": "null",
        "run_dir": local_run_dir(recipe.run_dir),
    }
    before = set(local_run_dir(recipe.run_dir).glob(f"{keys['name']}-*"))
    command = [
        sys.executable,
        "-m",
        "asyncrl.cli.main",
        "launch",
        source,
        *overrides,
        *(f"{key}={value}" for key, value in keys.items()),
    ]
    note(f"Probing: {STEPS} training steps of {keys['batch.groups_per_step']} groups, for at most {MOST_S:.0f} s")
    launched = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"COLUMNS": "200"}
    )
    output, stopped = _until_over(launched)
    made = sorted(set(local_run_dir(recipe.run_dir).glob(f"{keys['name']}-*")) - before, key=lambda path: path.stat().st_mtime)
    if not made:
        raise RecipeError(
            "--probe", f"the run could not be launched:\n{output.strip()}", "mend that, or use --from RUN or --rates FILE"
        )
    if launched.returncode != 0 and not stopped:
        remedy = f"mend that, see `asyncrl logs {made[-1]}`, or use --from RUN or --rates FILE"
        raise RecipeError("--probe", f"the run failed:\n{output.strip()[-_TOLD:]}", remedy)
    return made[-1]


def _until_over(launched: "subprocess.Popen[str]") -> tuple[str, bool]:
    """Wait for the run's end, or stop it in time; returns its output, and whether it was stopped."""
    try:
        return launched.communicate(timeout=MOST_S)[0], False
    except subprocess.TimeoutExpired:
        launched.send_signal(signal.SIGINT)
    try:
        return launched.communicate(timeout=_ENDING_S)[0], True
    except subprocess.TimeoutExpired:
        launched.kill()
        return launched.communicate()[0], True
