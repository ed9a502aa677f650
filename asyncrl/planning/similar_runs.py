"""Finds a run of the same recipe on the same machine, and says what it lets expect: one line of a dry run."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.measures.units import percent
from asyncrl.core.process.control_groups import usable_cores
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.storage.address import local_run_dir
from asyncrl.planning.prediction import MEDIAN_ERROR, predict
from asyncrl.planning.rate_fit import Basis, fit_run
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.gpus import usable
from asyncrl.run.measures.measure_file import read
from asyncrl.run.models.model_shape import TINY
from asyncrl.run.report.figures import number

LOOKED_AT = 8
"""The newest runs that are looked at."""
_SAME = ("environment", "sampling", "tasks", "reward")


def expected(recipe: Recipe, asked: Sequence[str]) -> str | None:
    """Return a sentence on what a launch of ``recipe`` would bring; None without a run that says so.

    Args:
        asked: the recipe's path or name, and its overrides: what `asyncrl plan` is to be asked.
    """
    for folder, basis in alike(recipe):
        try:
            found = predict(recipe, basis)
        except AsyncRLError:
            continue  # `asyncrl plan --from` says why
        speed, age = found.trajectories_per_s, found.staleness_mean
        more = shlex.join(["asyncrl", "plan", *asked, "--from", str(folder)])
        return (
            f"expected, by {basis.name}: {number(speed.mean)} trajectories/s (modelled mean: {number(speed.low)} to "
            f"{number(speed.high)}; plans were off by {100 * MEDIAN_ERROR:.1f} % in the median), staleness {age.mean:.2f}, idle "
            f"engines {percent(found.idle_generators.mean)} and learner {percent(found.idle_learner.mean)}; `{more}` says more"
        )
    return None


def alike(recipe: Recipe) -> Iterator[tuple[Path, Basis]]:
    """Yield the newest runs of ``run_dir`` whose rates and episodes hold for ``recipe`` on this machine, the newest first."""
    runs = sorted(local_run_dir(recipe.run_dir).glob("*/measures.jsonl"), key=_changed_at, reverse=True)
    for file in runs[:LOOKED_AT]:
        try:
            newest = read(file)[-1]
            if newest.cores != usable_cores() or (newest.device == "cpu") != (usable() == 0):
                continue
            basis = fit_run(RunFolder.find(file.parent).path)
        except (AsyncRLError, OSError):
            continue  # it has too few steps, or what it has kept cannot be read: `asyncrl plan --from` says why
        if basis.recipe is not None and _alike(basis.recipe, recipe):
            yield file.parent, basis


def _changed_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:  # its run was removed meanwhile
        return 0.0


def _alike(ran: Recipe, recipe: Recipe) -> bool:
    """Whether rates and episodes of one recipe hold for the other."""
    model = recipe.model
    if model.path == TINY and Path(ran.model.path).parent.name == TINY:  # a run's recipe names the folder that was made
        model = msgspec.structs.replace(model, path=ran.model.path)
    parser = msgspec.structs.replace(model, tool_parser=ran.model.tool_parser)
    return parser == ran.model and all(getattr(ran, key) == getattr(recipe, key) for key in _SAME)
