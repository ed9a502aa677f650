"""A run among its neighbours: the newest runs in its folder that train the same recipe by name, ranked by their evaluations.

Always holds: beside the text of each recipe, only small files are read, of at most :data:`MOST` runs that can be read, so that a
folder of thousands of runs costs a moment.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.run.measures.run_list import RunRow, launched, row_of, run_folders, sorted_rows
from asyncrl.run.report.run_record import RunRecord, read_recipe, recipe_to_show

MOST = 8
"""How many neighbours are shown."""
KEYS = 6
"""How many of the keys are named in which a neighbour differs."""
_NO_CHANGE = {"name", "run_dir"}
_NAME = re.compile(rb"^name: .*$", re.MULTILINE)


class Neighbour(msgspec.Struct, frozen=True):
    """One run in the ranking.

    Attributes:
        row: how it goes or ended.
        own: whether it is the run that is reported on.
        gain: how much higher its evaluation is than that run's; None where one of them has none.
        length: its evaluation as a share of the largest in the ranking, for a bar; 0 without one, or below 0.
        differs: the recipe keys in which it differs from that run, with its values.
    """

    row: RunRow
    own: bool
    gain: float | None
    length: float
    differs: tuple[str, ...]


def neighbours(run: RunRecord) -> list[Neighbour]:
    """Rank a run among its neighbours; an empty list if it has none."""
    folder = run.folder.path
    name = _name(folder)
    there = [each for each in run_folders(folder.parent) if _name(each) == name]
    if folder not in there:  # a model of an evaluation was not launched
        return []
    rows, found = [row_of(folder)], dict[str, tuple[str, ...]]()
    for each in sorted((each for each in there if each != folder), key=_launched, reverse=True):
        try:
            recipe = recipe_to_show(read_recipe(each / "recipe.yaml"))
            rows.append(row_of(each))
        except (RecipeError, OSError):
            continue
        found[rows[-1].run] = tuple(_differences(run.recipe, recipe))
        if len(found) == MOST:
            break
    if not found:
        return []
    own, largest = rows[0].evaluation, max((row.evaluation or 0.0 for row in rows), default=0.0)
    return [
        Neighbour(
            row=row,
            own=row.run not in found,
            gain=None if own is None or row.evaluation is None or row.run not in found else row.evaluation - own,
            length=max(row.evaluation or 0.0, 0.0) / largest if largest > 0 else 0.0,
            differs=found.get(row.run, ()),
        )
        for row in sorted_rows(rows, "evaluation")
    ]


def _name(place: Path) -> bytes:
    """Return the line of a run's recipe that has its name; nothing if the folder is gone."""
    try:
        found = _NAME.search((place / "recipe.yaml").read_bytes())
    except OSError:
        return b""
    return b"" if found is None else found[0]


def _launched(place: Path) -> str:
    try:
        return launched(place)
    except OSError:
        return ""


def _differences(own: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    keys = [key for key in dict.fromkeys((*own, *other)) if key not in _NO_CHANGE and own.get(key) != other.get(key)]
    named = [f"{key}={other[key]}" if key in other else f"no {key}" for key in keys[:KEYS]]
    return [*named, f"{len(keys) - KEYS} further keys"] if len(keys) > KEYS else named
