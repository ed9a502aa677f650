"""Families of tasks of the library reasoning-gym: its data sets, and items that are made again where they are needed."""

import importlib
from collections.abc import Mapping, Set
from difflib import get_close_matches
from types import ModuleType
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from asyncrl.core.errors import EnvironmentBroken, RecipeError
from asyncrl.core.task import Task
from asyncrl.core.text import describe_error

PACKAGE = "reasoning-gym==0.1.25"
UNREPEATABLE = ("isomorphic_strings", "polynomial_multiplication", "ransom_note")
"""Families whose items depend on the order of Python's sets, so the process that scores would have other items than the one that
made the tasks."""
MOST_ITEMS = 2**20
"""Size of the data sets that items are taken from, and distance of their seeds. An item is made when it is asked for."""


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A family of tasks.

    Attributes:
        weight: how many tasks are of this family, relative to the other families.
        options: settings of the family in the library, such as ``min_word_len``.
    """

    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    options: dict[str, Any] = {}


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a task comes from: the data of tasks of this environment.

    Attributes:
        family, seed, index: determine the item.
        answer: the answer that is expected, or one of them, for people who read episodes.
    """

    family: str
    seed: int
    index: int
    answer: str | None


class Families:
    """The library's data sets of some families. Items are made again where they are needed: not all can be written down."""

    def __init__(self, families: Mapping[str, Family]) -> None:
        self._families = families
        self._data_sets = {(name, 0): open_data_set(name, family, 0) for name, family in families.items()}

    @property
    def names(self) -> Set[str]:
        """Names of the families."""
        return self._families.keys()

    @property
    def described(self) -> str:
        """The families as JSON."""
        return msgspec.json.encode(self._families).decode()

    def check(self, task: Task) -> None:
        """See that the task is one of these families.

        Raises:
            EnvironmentBroken: it is not.
        """
        self._item(task)

    def entry(self, task: Task) -> dict[str, Any]:
        """Return the library's item of a task."""
        item, data_set = self._find(task)
        found: dict[str, Any] = data_set[item.index]
        return found

    def score(self, task: Task, answer: str) -> float:
        """Return the library's score of an answer."""
        item, data_set = self._find(task)
        return float(data_set.score_answer(answer, data_set[item.index]))

    def _find(self, task: Task) -> tuple[Item, Any]:
        item = self._item(task)
        key = item.family, item.seed
        if key not in self._data_sets:
            self._data_sets[key] = open_data_set(item.family, self._families[item.family], item.seed)
        return item, self._data_sets[key]

    def _item(self, task: Task) -> Item:
        try:
            item = msgspec.convert(task.data, Item)
        except msgspec.ValidationError as error:
            problem = f"task {task.id} was not made by this environment ({error})"
            raise EnvironmentBroken(f"{problem}; set tasks.kind to `generated`") from error
        if item.family not in self._families:
            raise EnvironmentBroken(f"task {task.id} is of family {item.family!r}; there are {', '.join(self._families)}")
        return item


def open_data_set(name: str, family: Family, seed: int) -> Any:
    """Return the library's data set of a family.

    Raises:
        RecipeError: the library or the family is missing, or the options are wrong.
    """
    library, place = _library(), f"environment.options.families.{name}"
    known = importlib.import_module("reasoning_gym.factory").DATASETS
    if name not in known:
        near = get_close_matches(name, known, n=1)
        remedy = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(sorted(known))}"
        raise RecipeError(place, f"reasoning-gym has no family {name!r}", remedy)
    if name in UNREPEATABLE:
        raise RecipeError(place, "its items differ from process to process, so no answer could be scored", "leave it out")
    if taken := family.options.keys() & {"seed", "size"}:
        raise RecipeError(f"{place}.options.{min(taken)}", "it is set by the run", "leave it out; see `seed` and `tasks`")
    try:
        return library.create_dataset(name, seed=seed, size=MOST_ITEMS, **family.options)
    except Exception as error:  # the library checks options by assertions, and by what its constructors raise
        problem = f"{family.options} is refused: {describe_error(error)}"
        raise RecipeError(f"{place}.options", problem, "see the family's Config") from error


def _library() -> ModuleType:
    try:
        return importlib.import_module("reasoning_gym")
    except ModuleNotFoundError as error:
        problem = f"the environment reasoning_gym needs the package {error.name}, which is missing"
        raise RecipeError(
            "environment.name", problem, f"run `pip install {PACKAGE}`, or `pip install asyncrl[reasoning-gym]`"
        ) from error
