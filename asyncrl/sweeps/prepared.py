"""Prepares a sweep: reads what it is asked to vary, checks every setting as a launch would, and predicts them if it is asked to.

What always holds: nothing is started but the run of a probe, where one may be, and nothing is made; every refusal is known before
the first point begins, and each point will run by the recipe that was checked here.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.storage.address import is_address
from asyncrl.planning.prediction import predict
from asyncrl.planning.probe import probe
from asyncrl.planning.rate_fit import Basis, fit_run
from asyncrl.planning.rate_sources import basis_from, basis_of_file
from asyncrl.planning.rates_file import read_rates
from asyncrl.planning.remarks import gathered
from asyncrl.planning.similar_runs import alike
from asyncrl.run.dry_run.plan import Plan
from asyncrl.run.folder.config_yaml import resolved_yaml
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.recipe.compose import compose, compose_for
from asyncrl.run.recipe.sweep_axes import read_axes
from asyncrl.sweeps.dominated_settings import without_dominated
from asyncrl.sweeps.remarks import notes_of
from asyncrl.sweeps.side_by_side import check_room, devices, size_of, visible
from asyncrl.sweeps.sweep import Point, Setting, Sweep, check_asked, seeds_of, settings_of, split_seeds

UNPREDICTED = (
    "nothing was predicted: no run in run_dir fits, and a dry run starts no probe; without --dry-run one is run first, "
    "and settings may be left out"
)

Accept = Callable[[Sequence[str]], tuple[Recipe, Plan]]
"""Checks the recipe with some overrides as a launch does, and returns what would run."""


class Foresight(msgspec.Struct, frozen=True):
    """What predictions stand on: a run, or a file of rates; without both, a run that fits, or else a probe.

    Attributes:
        probe: whether a probe may be made; without one, nothing is predicted if no run fits.
    """

    run: Path | None = None
    rates: str | None = None
    probe: bool = True


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
    foresight = asked.foresight
    made = None if foresight is None else _named_basis(foresight)  # before what takes longer
    swept, varied = split_seeds(read_axes(asked.recipe, asked.overrides), asked.seeds)
    parallel = min(asked.parallel, check_asked(varied, asked.seeds or 1 if swept is None else len(swept)))
    settings = settings_of(varied.axes)
    first = () if swept is None else (f"seed={swept[0]}",)
    _refuse_store(asked.recipe, (*varied.fixed, *settings[0].overrides, *first))
    with visible(devices(parallel)[0]):
        recipes, plans = _accepted(settings, lambda own: accept((*varied.fixed, *own, *first)), note)
    settings = tuple(msgspec.structs.replace(setting, size=size_of(plan)) for setting, plan in zip(settings, plans, strict=True))
    seeds = seeds_of(swept, asked.seeds, recipes[0].seed)
    check_room([setting.size for setting in settings for _ in seeds], parallel, plans[0].machine)
    remarks: list[str] = []
    if foresight is not None and made is None:
        made = _found_basis(foresight, asked.recipe, (*varied.fixed, *settings[0].overrides), recipes[0], note)
        if made is None:
            remarks.append(UNPREDICTED)
    if made is not None:
        settings = without_dominated(_foreseen(settings, recipes, made, note), recipes)
    sweep = Sweep(
        recipe=recipes[0].name,
        fixed=varied.fixed,
        axes=varied.axes,
        settings=settings,
        seeds=seeds,
        launched_in=os.getcwd(),
        basis="" if made is None else made.name,
    )
    with visible(devices(parallel)[0]):
        further = _of_further_seeds(asked.recipe, sweep, recipes, plans[0].machine, accept, note)
    texts = {
        point.name: resolved_yaml(
            msgspec.structs.replace(further.get(point, recipes[point.setting]), name=point.name, seed=point.seed)
        )
        for point in sweep.points
    }
    remarks += _remarks(settings, recipes, plans, parallel)
    return Prepared(sweep, texts, recipes[0].run_dir, tuple(remarks))


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


def _of_further_seeds(
    recipe: str, sweep: Sweep, recipes: Sequence[Recipe], machine: Machine, accept: Accept, note: Callable[[str], None]
) -> dict[Point, Recipe]:
    """Return the recipes of points in which more than the seed itself follows the seed, as what a recipe writes ``${seed}`` does.

    Raises:
        RecipeError: one of them is refused.
    """
    if len(sweep.seeds) < 2:
        return {}

    def composed(setting: Setting, seed: int) -> Recipe:
        made, _ = compose_for(machine, recipe, (*sweep.fixed, *setting.overrides, f"seed={seed}"))
        return msgspec.structs.replace(made, seed=0)

    follow = {
        number
        for number, setting in enumerate(sweep.settings)
        if not setting.dropped and composed(setting, sweep.seeds[0]) != composed(setting, sweep.seeds[1])
    }
    points = [point for point in sweep.points if point.setting in follow and point.seed != recipes[point.setting].seed]
    told = [
        Setting(name=f"{own.name} seed={point.seed}", overrides=(*sweep.fixed, *own.overrides, f"seed={point.seed}"))
        for point in points
        for own in (sweep.settings[point.setting],)
    ]
    return dict(zip(points, _accepted(told, accept, note)[0], strict=True))


def _named_basis(foresight: Foresight) -> Basis | None:
    """Return what predictions stand on, if that was named.

    Raises:
        RecipeError: the run or the file does not have what is needed.
    """
    file = None if foresight.rates is None else read_rates(foresight.rates)
    played = None if foresight.run is None else fit_run(foresight.run)
    return played if file is None else basis_of_file(file, foresight.rates or "", played)


def _found_basis(
    foresight: Foresight, recipe: str, overrides: Sequence[str], composed: Recipe, note: Callable[[str], None]
) -> Basis | None:
    """Return what to predict from if nothing was named: a run that fits, or a probe if one may be made."""
    if (fitting := next(iter(alike(composed)), None)) is not None:
        return fitting[1]
    if not foresight.probe:
        return None
    probing = partial(probe, source=recipe, overrides=overrides, note=note)
    return basis_from(composed, run=None, file=None, name="", probe=probing)


def _foreseen(settings: Sequence[Setting], recipes: Sequence[Recipe], basis: Basis, note: Callable[[str], None]) -> list[Setting]:
    found = []
    for number, (setting, recipe) in enumerate(zip(settings, recipes, strict=True), 1):
        note(f"Predicting {number} of {len(settings)}: {setting.name}")
        try:
            foreseen = predict(recipe, basis, name=setting.name, overrides=setting.overrides)
        except AsyncRLError as error:  # what cannot be foreseen is run
            note(f"{setting.name} cannot be foreseen: {error}")
            foreseen = None
        found.append(msgspec.structs.replace(setting, foreseen=foreseen))
    return found


def _remarks(settings: Sequence[Setting], recipes: Sequence[Recipe], plans: Sequence[Plan], parallel: int) -> Iterator[str]:
    """The remarks of all plans, the notes of all predictions, and what is to be said of the sweep itself."""
    remarks = ((setting.name, remark) for setting, plan in zip(settings, plans, strict=True) for remark in plan.remarks)
    yield from gathered(remarks, len(settings), "setting")
    yield from (f"prediction: {note}" for note in notes_of(settings))
    first: dict[bytes, str] = {}
    for setting, recipe in zip(settings, recipes, strict=True):
        known = first.setdefault(msgspec.json.encode(recipe), setting.name)
        if known != setting.name:
            yield f"{setting.name} is the same recipe as {known}: its runs say nothing more than further seeds would"
    if parallel > 1:
        yield (
            f"{parallel} runs side by side share the processor cores: their speeds compare with each other, and the last ones, "
            "which have the machine to themselves, are faster"
        )
