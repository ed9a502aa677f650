"""Runs a recipe for a short while, so that rates can be fitted: what ``asyncrl plan --probe`` does.

The run is the real one, with a smaller batch and one engine: its loads pass through all sizes while the pipeline fills and
empties. What always holds: it is told to end :data:`MOST_S` after its first training step, or if that does not come, and killed
if it has not ended soon after; its folder, which lies beside other runs, is kept.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.advantage import GaeAdvantageConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.storage.address import local_run_dir
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.recipe.compose import quoted

STEPS = 12
"""Training steps of a probe."""
LEAST_GROUPS = 4
MOST_S = 90.0
"""Seconds after the first training step at which a probe is stopped; what it has done until then counts."""
STARTING_S = 600.0
"""How long the first training step may take to come: engines and learner start, and on GPUs compile."""
_KEPT = "tracking.trajectories"
_LOOK_S = 1.0
_ENDING_S = 20.0
_TOLD = 4000
"""Characters of a failed run's output that are shown."""


def keys_of(recipe: Recipe) -> dict[str, object]:
    """What a probe changes of ``recipe``, so that its rules still hold: keys and values, in Hydra's grammar."""
    groups = max(LEAST_GROUPS, recipe.learner.data_parallel, recipe.fewest_groups, recipe.batch.groups_per_step // 4)
    keys: dict[str, object] = {
        "name": f"{recipe.name}-probe",
        "steps": STEPS,
        "batch.groups_per_step": min(groups, recipe.batch.groups_per_step),
        "generators.count": 1,
        "buffer.pipeline_depth": min(1, recipe.buffer.max_staleness),
        "learner.warmup_steps": min(recipe.learner.warmup_steps, STEPS),
        "evaluation.every": STEPS,
        "checkpoint.every": STEPS,
        _KEPT: "{keep: all}",
        f"{_KEPT}.dir": "null",
        "checkpoint.dir": "null",
        "run_dir": quoted(str(local_run_dir(recipe.run_dir))),
    }
    if isinstance(recipe.algorithm.advantage, GaeAdvantageConfig) and recipe.algorithm.advantage.critic_warmup_steps:
        keys["algorithm.advantage.critic_warmup_steps"] = 0  # those train no policy, and so are no usual steps
    if recipe.tune is not None:
        keys["tune"] = "null"
    return keys


def with_keys(overrides: Sequence[str], keys: Mapping[str, object]) -> list[str]:
    """Return the overrides of a probe: what ``overrides`` say of kept episodes would mean nothing where all are kept."""
    others = [each for each in overrides if not each.lstrip("+~").startswith(_KEPT)]
    return [*others, *(f"{key}={value}" for key, value in keys.items())]


def probe(recipe: Recipe, source: str, overrides: Sequence[str], note: Callable[[str], None]) -> Path:
    """Run ``recipe`` for a short while, and return the run's folder.

    Args:
        source: the path or name of the recipe, with its ``overrides``.
        note: is told where the run's output goes.

    Raises:
        RecipeError: the run could not be launched, or failed.
    """
    keys = keys_of(recipe)
    before = set(local_run_dir(recipe.run_dir).glob(f"{keys['name']}-*"))
    command = [sys.executable, "-P", "-m", "asyncrl.cli.main", "launch", source, *with_keys(overrides, keys)]
    note(f"Probing: {STEPS} training steps of {keys['batch.groups_per_step']} groups, for at most {MOST_S:.0f} s once they begin")
    launched = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"COLUMNS": "200"}
    )

    def new() -> list[Path]:
        return [path for path in local_run_dir(recipe.run_dir).glob(f"{keys['name']}-*") if path not in before]

    output, stopped = _until_over(launched, lambda: any(RunFolder(path).measures.exists() for path in new()))
    made = sorted(new(), key=lambda path: path.stat().st_mtime)
    if not made:
        raise RecipeError(
            "--probe", f"the run could not be launched:\n{output.strip()}", "mend that, or use --from RUN or --rates FILE"
        )
    if launched.returncode != 0 and not stopped:
        remedy = f"mend that, see `asyncrl logs {made[-1]}`, or use --from RUN or --rates FILE"
        raise RecipeError("--probe", f"the run failed:\n{output.strip()[-_TOLD:]}", remedy)
    return made[-1]


def _until_over(launched: "subprocess.Popen[str]", trains: Callable[[], bool]) -> tuple[str, bool]:
    """Wait for the run's end, or stop it in time; returns its output, and whether it was stopped."""
    until, training = time.monotonic() + STARTING_S, False
    while time.monotonic() < until:
        try:
            return launched.communicate(timeout=_LOOK_S)[0], False
        except subprocess.TimeoutExpired:
            if not training and trains():
                until, training = time.monotonic() + MOST_S, True
    launched.send_signal(signal.SIGINT)
    try:
        return launched.communicate(timeout=_ENDING_S)[0], True
    except subprocess.TimeoutExpired:
        launched.kill()
        return launched.communicate()[0], True
