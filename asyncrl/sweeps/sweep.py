"""What a sweep consists of: settings of one recipe, each of which is run with the same seeds.

What always holds: a point's name is that of no other, and a name for files; points come seed by seed, so that a sweep that is
stopped early has something of every setting.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import product

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.planning.prediction import Prediction
from asyncrl.run.recipe.sweep_axes import Axis, Varied

MOST_POINTS = 1000
"""The most runs of one sweep."""
MOST_SEED = 2**31 - 1
_SLUG = 48
"""The longest part of a point's name that tells its setting."""
_OWN = ("name", "run_dir")


class RunSize(msgspec.Struct, frozen=True):
    """What a run takes: bytes of memory, and GPUs."""

    memory: int = 0
    gpus: float = 0.0


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of values of the swept keys.

    Attributes:
        name: what sets it apart: the last words of its keys, with their values.
        overrides: the changes of the recipe, in Hydra's grammar.
        size: what each of its runs takes; nothing where an earlier version did not say.
        foreseen: what a plan predicts of it; None without a plan.
        dropped: why the plan has it left out; empty if it is run.
    """

    name: str
    overrides: tuple[str, ...]
    size: RunSize = RunSize()
    foreseen: Prediction | None = None
    dropped: str = ""


class Point(msgspec.Struct, frozen=True):
    """One run of a sweep: its name, the place of its setting, and its seed."""

    name: str
    setting: int
    seed: int


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """All that a sweep consists of.

    Attributes:
        recipe: the recipe's name.
        fixed: changes of the recipe that hold for all settings.
        axes: the swept keys with their values, but for seeds.
        seeds: those that each setting is run with.
        launched_in: the folder in which relative paths of the recipe begin.
        basis: what the plan's predictions stand on; empty without a plan.
    """

    recipe: str
    fixed: tuple[str, ...]
    axes: tuple[Axis, ...]
    settings: tuple[Setting, ...]
    seeds: tuple[int, ...]
    launched_in: str
    basis: str = ""

    @property
    def points(self) -> tuple[Point, ...]:
        """The runs, in the order in which they are begun."""
        chosen = [(place, each) for place, each in enumerate(self.settings) if not each.dropped]
        digits = len(str(len(self.settings) - 1))
        return tuple(
            Point(f"{place:0{digits}}-{_slug(each.name)}seed-{seed}", place, seed)
            for seed in self.seeds
            for place, each in chosen
        )

    def values_of(self, setting: int) -> dict[str, int | float | str]:
        """The values of the swept keys in a setting: numbers where all values of a key are numbers, and else texts."""
        texts = [override.partition("=")[2] for override in self.settings[setting].overrides]
        return {axis.key.lstrip("+~"): _typed(axis, text) for axis, text in zip(self.axes, texts, strict=True)}


def settings_of(axes: Sequence[Axis]) -> tuple[Setting, ...]:
    """Return all combinations of the values of some keys; one without overrides if there is no key."""
    keys = [axis.key.lstrip("+~") for axis in axes]
    ends = Counter(key.rpartition(".")[2] for key in keys)
    short = [end if ends[end := key.rpartition(".")[2]] == 1 else key for key in keys]
    found = []
    for values in product(*(zip(axis.values, axis.shown, strict=True) for axis in axes)):
        told = " ".join(f"{key}={shown}" for key, (_, shown) in zip(short, values, strict=True))
        overrides = tuple(f"{axis.key}={value}" for axis, (value, _) in zip(axes, values, strict=True))
        found.append(Setting(name=told or "as it is", overrides=overrides))
    return tuple(found)


def split_seeds(varied: Varied, asked: int | None) -> tuple[tuple[int, ...] | None, Varied]:
    """Take the values of the key ``seed`` out of what is varied; None if it is not.

    Args:
        asked: how many seeds there are to be; None if that was not said.

    Raises:
        RecipeError: seeds are given in two ways or twice, or one is none.
    """
    swept = next((axis for axis in varied.axes if axis.key.lstrip("+") == "seed"), None)
    if swept is None:
        return None, varied
    if asked is not None:
        raise RecipeError("seed", "its values are given, and --seeds too", "give one of both")
    try:
        seeds = tuple(map(int, swept.values))
    except ValueError as error:
        raise RecipeError("seed", f"{', '.join(swept.values)} are no whole numbers", "write seed=0,1,2, or --seeds 3") from error
    if len(set(seeds)) < len(seeds):
        raise RecipeError("seed", f"{', '.join(swept.values)} name a seed twice", "give each seed once")
    if not all(0 <= seed <= MOST_SEED for seed in seeds):
        raise RecipeError("seed", f"{', '.join(swept.values)} are not all from 0 to {MOST_SEED:,}", "give others")
    return seeds, msgspec.structs.replace(varied, axes=tuple(axis for axis in varied.axes if axis is not swept))


def seeds_of(swept: tuple[int, ...] | None, asked: int | None, first: int) -> tuple[int, ...]:
    """Return the seeds of a sweep: its own values, or as many as were asked for, beginning with the recipe's own.

    Raises:
        RecipeError: the last would be too large.
    """
    if swept is not None:
        return swept
    last = first + (asked or 1) - 1
    if last > MOST_SEED:
        raise RecipeError("seed", f"the last of the seeds would be {last:,}", f"begin so that none is over {MOST_SEED:,}")
    return tuple(range(first, last + 1))


def check_asked(varied: Varied, seeds: int) -> int:
    """Return how many runs there are to be; refuse what is no sweep, or too large a one.

    Raises:
        RecipeError: there is one point only, or there are too many; or a key is swept that names runs and their folder.
    """
    runs = seeds
    for axis in varied.axes:
        runs *= len(axis.values)
        if axis.key.lstrip("+~") in _OWN:
            raise RecipeError(axis.key, "a sweep names its runs, and keeps them in one folder", "sweep another key")
    if runs > MOST_POINTS:
        raise RecipeError("", f"the sweep has {runs:,} runs, and may have {MOST_POINTS:,}", "give fewer values or seeds")
    if runs == 1:
        raise RecipeError("", "there is only one run, and so nothing to compare", "give values (KEY=A,B,C), or --seeds 3")
    return runs


def _typed(axis: Axis, text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return dict(zip(axis.values, map(kind, axis.values), strict=True))[text]
        except ValueError:
            continue
    return dict(zip(axis.values, axis.shown, strict=True))[text]


def _slug(name: str) -> str:
    words = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:_SLUG]
    return f"{words}-" if words else ""
