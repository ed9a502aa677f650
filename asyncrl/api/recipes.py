"""Turns what a Python program gives for a recipe and for changes of it into what the command line takes.

What always holds: whatever is given, what cannot be a recipe or a change is a ``RecipeError`` that names it.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import yaml

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.section import Section
from asyncrl.core.text import short

PathLike = str | os.PathLike[str]
RecipeLike = PathLike | Mapping[str, Any] | Section
Overrides = Sequence[str] | Mapping[str, Any]
_SPECIAL, _ESCAPED = re.compile(r"[\\()\[\]{}:=,]"), r"\\\g<0>"
"""The characters that are escaped in a key of a dictionary in an override, and how."""


NO_NAMES: Mapping[int, str] = MappingProxyType({})


@contextmanager
def recipe_file(recipe: RecipeLike, names: Mapping[int, str] = NO_NAMES) -> Iterator[str]:
    """Give the path or name of a recipe; that of a file with it, if it is a dictionary or typed.

    Args:
        names: what is written for classes and functions, by their ids.

    Raises:
        RecipeError: it is neither, or holds what YAML cannot.
    """
    if isinstance(recipe, str | os.PathLike):
        yield os.fspath(recipe)
        return
    if isinstance(recipe, Section):
        recipe = _set_keys(recipe)
    if not isinstance(recipe, Mapping):
        remedy = "give the path of a .yaml file, the name of a shipped recipe, a dictionary of its sections, or an asyncrl.Recipe"
        raise RecipeError("", f"{short(recipe)} is no recipe", remedy)
    with tempfile.TemporaryDirectory(prefix="asyncrl-") as folder:
        file = Path(folder) / "recipe.yaml"
        file.write_text(yaml.safe_dump(_plain("", recipe, names), sort_keys=False, allow_unicode=True), encoding="utf-8")
        yield str(file)


def _set_keys(section: Section) -> dict[str, Any]:
    """Return the keys of a typed section whose values are not the schema's defaults, so that ``auto`` keys stay so."""
    config, keys = section.__struct_config__, {}
    if config.tag_field is not None:
        keys[config.tag_field] = config.tag
    for field in msgspec.structs.fields(section):
        value = getattr(section, field.name)
        if field.required or value != field.default:
            keys[field.encode_name] = _set_value(value)
    return keys


def _set_value(value: Any) -> Any:
    if isinstance(value, Section):
        return _set_keys(value)
    if isinstance(value, Mapping):
        return {key: _set_value(each) for key, each in value.items()}
    return [_set_value(each) for each in value] if isinstance(value, list | tuple) else value


def override_texts(overrides: Overrides, names: Mapping[int, str] = NO_NAMES) -> tuple[str, ...]:
    """Write changes of a recipe as the command line takes them.

    Args:
        overrides: texts such as ``learner.lr=1e-4``; or a dictionary, in which ``{"learner": {"lr": 1e-4}}`` and
            ``{"learner.lr": 1e-4}`` are the same.
        names: what is written for classes and functions, by their ids.

    Raises:
        RecipeError: something is neither.
    """
    if isinstance(overrides, Mapping):
        return tuple(f"{key}={value}" for key, value in _flat(overrides, "", names))
    if isinstance(overrides, str):
        raise RecipeError("", f"overrides is the text {overrides!r}", f"give a list of texts, [{overrides!r}], or a dictionary")
    if not isinstance(overrides, Sequence) or not all(isinstance(each, str) for each in overrides):
        remedy = 'give a list of texts such as "learner.lr=1e-4", or a dictionary'
        raise RecipeError("", f"overrides is {short(overrides)}", remedy)
    return tuple(overrides)


def _flat(mapping: Mapping[str, Any], place: str, names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    for key, value in mapping.items():
        if not isinstance(key, str):
            raise RecipeError(place, f"{short(key)} is no key", "keys are texts")
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{place}{key}.", names)
        else:
            yield place + key, value_text(place + key, value, names)


def value_text(place: str, value: object, names: Mapping[int, str] = NO_NAMES) -> str:
    """Write the value of a key as the command line takes it, a dictionary as a whole section.

    Raises:
        RecipeError: it is nothing that a recipe can hold.
    """
    return _written(_plain(place, value, names))


def _plain(place: str, value: object, names: Mapping[int, str]) -> Any:
    """Return a value of Python's own types.

    Raises:
        RecipeError: it is nothing that a recipe can hold.
    """

    def plainer(each: Any) -> Any:
        return names[id(each)] if id(each) in names else _plainer(each)

    try:
        return msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=plainer)
    except (TypeError, RecursionError) as error:
        remedy = "give text, numbers, true or false, None, lists or dictionaries"
        raise RecipeError(place, f"{short(value)} cannot stand in a recipe", remedy) from error


def _plainer(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if callable(getattr(value, "tolist", None)):  # numpy
        return value.tolist()
    raise TypeError


def _written(value: object) -> str:
    """Write a plain value in the grammar of Hydra's overrides."""
    from hydra.core.override_parser.types import Quote, QuotedString  # takes a tenth of a second

    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return QuotedString(value, Quote.single).with_quotes()
        case dict():
            return f"{{{','.join(f'{_SPECIAL.sub(_ESCAPED, str(key))}:{_written(each)}' for key, each in value.items())}}}"
        case list() | tuple():
            return f"[{','.join(map(_written, value))}]"
        case _:
            return repr(value)
