"""Turns classes and functions within a recipe that a program gives into names, and writes the module that has them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncrl.api.recipes import Overrides, RecipeLike, override_texts, recipe_file
from asyncrl.core.errors import RecipeError
from asyncrl.core.text import short

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncrl.envs.base import Environment


def changes_for(
    environment: type[Environment] | None, loss: Callable[..., Any] | None, schedule: Callable[..., Any] | None
) -> dict[str, Any]:
    """Return the changes of a recipe that name what a call of ``launch`` was given beside it.

    Raises:
        RecipeError: something is no class or no function.
    """
    changes: dict[str, Any] = {}
    if environment is not None:
        if not isinstance(environment, type):
            problem = f"{short(environment)} is no class"
            raise RecipeError("environment", problem, "give the class itself; its options go into environment.options")
        changes |= {"environment.kind": "class", "environment.name": environment}
    for key, function in (("algorithm.loss", loss), ("learner.schedule", schedule)):
        if function is not None:
            if not isinstance(function, FunctionType):
                raise RecipeError(key, f"{short(function)} is no function", "give one that is made with `def`")
            # null first, so that nothing is left of the section that the recipe has
            changes |= {key: None, f"{key}.kind": "custom", f"{key}.name": function}
    return changes


class Written(NamedTuple):
    """A recipe and its changes, as another process takes them.

    Attributes:
        recipe: path or name.
        overrides: the changes as texts.
        code: the folder of the module with what they name; None if there is none.
    """

    recipe: str
    overrides: tuple[str, ...]
    code: str | None


@contextmanager
def written(recipe: RecipeLike, overrides: Overrides, changes: Mapping[str, Any]) -> Iterator[Written]:
    """Write down a recipe and its changes for another process; what is written is there while this context is open.

    Args:
        changes: further ones, before ``overrides``.

    Raises:
        RecipeError: something cannot stand in a recipe, or cannot leave this process.
    """
    given = [each for part in (recipe, changes, overrides) for each in _given("", part)]
    with tempfile.TemporaryDirectory(prefix="asyncrl-given-") as folder:
        names = _names(given, Path(folder))
        texts = (*override_texts(changes, names), *override_texts(overrides, names))
        with recipe_file(recipe, names) as file:
            yield Written(file, texts, folder if any(Path(folder).iterdir()) else None)


def _given(place: str, value: object) -> Iterator[tuple[str, type | FunctionType]]:
    """Yield the classes and functions within a recipe or its changes, with their keys."""
    if isinstance(value, type | FunctionType):
        yield place, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _given(f"{place}.{key}" if place else str(key), each)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for number, each in enumerate(value):
            yield from _given(f"{place}.{number}" if place else str(number), each)
    elif hasattr(value, "__struct_fields__"):
        for name in value.__struct_fields__:
            yield from _given(f"{place}.{name}" if place else name, getattr(value, name))


def _names(given: Sequence[tuple[str, type | FunctionType]], folder: Path) -> dict[int, str]:
    """Return the names of classes and functions by their ids; a module is written for those that nobody could import.

    Raises:
        RecipeError: one has no name, or two have the same, by which the run would take one for the other. Of one key, only the
            last counts, as with a class that a notebook's cell has defined once more.
    """
    if not given:
        return {}
    from asyncrl.core.plug_ins.given_code import importable_name, module_of, write_module

    names = {id(each): name for _, each in given if (name := importable_name(each)) is not None}
    copied: dict[str, tuple[str, type | FunctionType]] = {}
    last = dict(given)
    for place, each in [*last.items(), *given]:
        if id(each) in names:
            continue
        if not each.__name__.isidentifier():
            raise RecipeError(place, "a lambda has no name", "give a function that is made with `def`")
        other_place, other = copied.setdefault(each.__name__, (place, each))
        if other is not each and last[place] is each:
            problem = f"{short(each)} is called {each.__name__!r}, as is what {other_place} has"
            raise RecipeError(place, problem, "give one of them another name; of a function that another one makes, set __name__")
    if copied:
        module, text = module_of(list(copied.values()))
        write_module(module, text, folder)
        names = {id(each): f"{module}:{each.__name__}" for _, each in given} | names
    return names
