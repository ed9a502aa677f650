"""Prepares a sweep: reads what it is asked to vary, checks every setting as a launch would, and predicts them if it is asked to.

What always holds: nothing is started but the run of a probe, and nothing is made; every refusal is known before the first point
begins, and each point will run by the recipe that was checked here.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.measures.units import memory
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.storage.address import is_address
from asyncrl.core.text import pluralize
from asyncrl.planning.prediction import predict
from asyncrl.planning.probe import probe
from asyncrl.planning.rate_fit import Basis
from asyncrl.planning.rate_sources import basis_from
from asyncrl.planning.rates_file import read_rates
from asyncrl.planning.similar_runs import alike
from asyncrl.run.dry_run.plan import Plan
from asyncrl.run.folder.config_yaml import resolved_yaml
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.gpus import usable
from asyncrl.run.recipe.compose import compose
from asyncrl.run.recipe.sweep_axes import read_axes
from asyncrl.sweeps.dominated_settings import without_dominated
from asyncrl.sweeps.sweep import Setting, Sweep, check_asked, seeds_of, settings_of, split_seeds

_VISIBLE = "CUDA_VISIBLE_DEVICES"

Accept = Callable[[Sequence[str]], tuple[Recipe, Plan]]
"""Checks the recipe with some overrides as a launch does, and returns what would run."""


class Foresight(msgspec.Struct, frozen=True):
    """What predictions stand on: a run, or a file of rates; without both, a run that fits, or else a probe."""

    run: Path | None = None
    rates: str | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep is asked for: see ``asyncrl sweep --help``."""

    recipe: str
    overrides: tuple[str, ...]
    seeds: int | None = None
    parallel: int = 1
    foresight: Foresight | None = None


class Prepared(msgspec.Struct, frozen=True):
    """A sweep that may begin.

    Attributes:
        recipes: the resolved recipe of each point, by the point's name.
        run_dir: where the folder of the sweep is made.
        remarks: what is allowed but probably not meant.
    """

    sweep: Sweep
    recipes: dict[str, str]
    run_dir: str
    remarks: tuple[str, ...]


def prepare(asked: Asked, accept: Accept, note: Callable[[str], None]) -> Prepared:
    """Check a sweep.

    Args:
        note: is told what takes long.

    Raises:
        RecipeError: the values or a setting are refused; the error's notes name the other settings that are.
    """
    if asked.foresight is not None and asked.foresight.run is not None:
        RunFolder.find(asked.foresight.run)  # before what takes longer
    swept, varied = split_seeds(read_axes(asked.recipe, asked.overrides), asked.seeds)
    check_asked(varied, asked.seeds or 1 if swept is None else len(swept))
    settings = settings_of(varied.axes)
    first = () if swept is None else (f"seed={swept[0]}",)
    _refuse_store(asked.recipe, (*varied.fixed, *settings[0].overrides, *first))
    with _visible(devices(asked.parallel)[0]):
        recipes, plans = _accepted(settings, lambda own: accept((*varied.fixed, *own, *first)), note)
    _check_room(plans, asked.parallel)
    seeds = seeds_of(swept, asked.seeds, recipes[0].seed)
    basis = ""
    if asked.foresight is not None:
        made = _basis(asked.foresight, asked.recipe, (*varied.fixed, *settings[0].overrides), recipes[0], note)
        basis, settings = made.name, without_dominated(_foreseen(settings, recipes, made, note), recipes)
    sweep = Sweep(
        recipe=recipes[0].name,
        fixed=varied.fixed,
        axes=varied.axes,
        settings=settings,
        seeds=seeds,
        launched_in=os.getcwd(),
        basis=basis,
    )
    texts = {
        point.name: resolved_yaml(msgspec.structs.replace(recipes[point.setting], name=point.name, seed=point.seed))
        for point in sweep.points
    }
    return Prepared(sweep, texts, recipes[0].run_dir, tuple(_remarks(settings, plans, asked.parallel)))


def _refuse_store(recipe: str, overrides: Sequence[str]) -> None:
    """Refuse a sweep in an object store, before a launch would write to it.

    Raises:
        RecipeError: ``run_dir`` is an address.
    """
    try:
        run_dir = compose(recipe, overrides).run_dir
    except RecipeError:  # told with what is wrong with the other settings
        return
    if is_address(run_dir):
        problem = f"{run_dir!r} is in an object store, and a sweep is kept in a folder of this machine"
        remedy = "give run_dir=runs, and copy the folder there at the end; checkpoint.dir may be there"
        raise RecipeError("run_dir", problem, remedy)


def devices(parallel: int) -> list[str | None]:
    """Divide the GPUs of this machine among points that run side by side.

    Returns:
        for each of them, what ``CUDA_VISIBLE_DEVICES`` is to say; None where it may use all, because there is one only, or no GPU
        here, or a cluster that gives each process its own.

    Raises:
        RecipeError: there are fewer GPUs than points.
    """
    gpus = usable()
    if parallel == 1 or not gpus or os.environ.get("RAY_ADDRESS"):
        return [None] * parallel
    if parallel > gpus:
        raise RecipeError("--parallel", f"there are {gpus} GPUs for {parallel} runs side by side", f"give at most {gpus}")
    named = os.environ.get(_VISIBLE)
    names = [str(number) for number in range(gpus)] if named is None else [name.strip() for name in named.split(",")][:gpus]
    each = gpus // parallel
    return [",".join(names[place * each : (place + 1) * each]) for place in range(parallel)]


@contextmanager
def _visible(device: str | None) -> Iterator[None]:
    """Let this process see the GPUs that a point will see."""
    before = os.environ.get(_VISIBLE)
    if device is not None:
        os.environ[_VISIBLE] = device
    try:
        yield
    finally:
        if device is not None:
            os.environ.pop(_VISIBLE)
            if before is not None:
                os.environ[_VISIBLE] = before


def _accepted(
    settings: Sequence[Setting], accept: Accept, note: Callable[[str], None]
) -> tuple[tuple[Recipe, ...], tuple[Plan, ...]]:
    found: list[tuple[Recipe, Plan]] = []
    refused: list[tuple[Setting, RecipeError]] = []
    for number, setting in enumerate(settings, 1):
        note(f"Checking {number} of {len(settings)}: {setting.name}")
        try:
            found.append(accept(setting.overrides))
        except RecipeError as error:
            refused.append((setting, error))
    if refused:
        first = refused[0][1]
        refusal = RecipeError(first.place, f"with {refused[0][0].name}, {first.problem}", first.remedy)
        for further in getattr(first, "__notes__", ()):
            refusal.add_note(further)
        for setting, other in refused[1:]:
            refusal.add_note(f"with {setting.name}: {other}")
        raise refusal from first
    return tuple(recipe for recipe, _ in found), tuple(plan for _, plan in found)


def _check_room(plans: Sequence[Plan], parallel: int) -> None:
    """Refuse more points side by side than the machine, or the cluster, has room for."""
    if parallel == 1:
        return
    machine = plans[0].machine
    needed = parallel * max(plan.total_bytes for plan in plans)
    if needed > machine.free:
        problem = f"{parallel} runs side by side take about {memory(needed)}, and {memory(machine.free)} are free"
        raise RecipeError("--parallel", problem, "give fewer")
    gpus = parallel * max(sum(each.count * each.gpus for each in plan.processes) for plan in plans)
    if machine.cluster is not None and gpus > machine.gpus:
        problem = f"{parallel} runs side by side take {gpus:g} GPUs, and the cluster has {machine.gpus}"
        raise RecipeError("--parallel", problem, "give fewer, or a recipe of fewer engines (generators.count)")


def _basis(foresight: Foresight, recipe: str, overrides: Sequence[str], composed: Recipe, note: Callable[[str], None]) -> Basis:
    """Return what to predict from: what was named, or a run that fits, or a probe."""
    if foresight.run is None and foresight.rates is None:
        if (fitting := next(iter(alike(composed)), None)) is not None:
            return fitting[1]
        probing = partial(probe, source=recipe, overrides=overrides, note=note)
        return basis_from(composed, run=None, file=None, name="", probe=probing)
    file = None if foresight.rates is None else read_rates(foresight.rates)
    return basis_from(composed, run=foresight.run, file=file, name=foresight.rates or "", probe=None)


def _foreseen(settings: Sequence[Setting], recipes: Sequence[Recipe], basis: Basis, note: Callable[[str], None]) -> list[Setting]:
    found = []
    for number, (setting, recipe) in enumerate(zip(settings, recipes, strict=True), 1):
        note(f"Predicting {number} of {len(settings)}: {setting.name}")
        try:
            foreseen = predict(recipe, basis, name=setting.name, overrides=setting.overrides)
        except RecipeError as error:  # what cannot be foreseen is run
            note(f"{setting.name} cannot be foreseen: {error}")
            foreseen = None
        found.append(msgspec.structs.replace(setting, foreseen=foreseen))
    return found


def _remarks(settings: Sequence[Setting], plans: Sequence[Plan], parallel: int) -> Iterator[str]:
    """The remarks of all plans, each once, with how many settings it is about."""
    about: dict[str, list[str]] = {}
    for setting, plan in zip(settings, plans, strict=True):
        for remark in plan.remarks:
            about.setdefault(remark, []).append(setting.name)
    for remark, names in about.items():
        yield (
            remark
            if len(names) == len(settings)
            else f"{names[0]}: {remark}" + (f" (and of {pluralize(len(names) - 1, 'other setting')})" if len(names) > 1 else "")
        )
    if parallel > 1:
        yield (
            f"{parallel} runs side by side share the processor cores: their speeds compare with each other, and the last ones, "
            "which have the machine to themselves, are faster"
        )
