"""Runs a recipe for a short while, so that rates can be fitted: what ``asyncrl plan --probe`` does.

The run is the real one, with a smaller batch and one engine: its loads pass through all sizes while the pipeline fills and
empties. What always holds: it ends within :data:`MOST_S`, and its folder, which lies beside other runs, is kept.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe

STEPS = 12
"""Training steps of a probe."""
LEAST_GROUPS = 4
MOST_S = 110.0
"""Seconds after which a probe is stopped; what it has done until then counts."""
_ENDING_S = 20.0


def probe(recipe: Recipe, source: str, overrides: Sequence[str], note: Callable[[str], None]) -> Path:
    """Run ``recipe`` for a short while, and return the run's folder.

    Args:
        source: the path or name of the recipe, with its ``overrides``.
        note: is told where the run's output goes.

    Raises:
        RecipeError: the run could not be launched.
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
    }
    before = set(Path(recipe.run_dir).glob(f"{keys['name']}-*"))
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
    output = _until_over(launched)
    made = sorted(set(Path(recipe.run_dir).glob(f"{keys['name']}-*")) - before, key=lambda path: path.stat().st_mtime)
    if not made:
        raise RecipeError(
            "--probe", f"the run could not be launched:\n{output.strip()}", "mend that, or use --from RUN or --rates FILE"
        )
    return made[-1]


def _until_over(launched: "subprocess.Popen[str]") -> str:
    """Wait for the run's end, or stop it in time; returns its output."""
    began = time.monotonic()
    try:
        return launched.communicate(timeout=MOST_S)[0]
    except subprocess.TimeoutExpired:
        launched.send_signal(signal.SIGINT)
    try:
        return launched.communicate(timeout=_ENDING_S)[0]
    except subprocess.TimeoutExpired:
        launched.kill()
        output = launched.communicate()[0]
        return f"{output}\nstopped after {time.monotonic() - began:.0f} s"
