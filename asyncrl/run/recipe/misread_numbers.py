"""Finds numbers of a YAML file that YAML 1.1, which Hydra reads, takes for other numbers than a person does."""

import re
from pathlib import Path

import yaml

from asyncrl.core.errors import RecipeError

_OCTAL = r"[-+]?0[0_]*[1-7]_*[0-7][0-7_]*"
_BASE_60 = r"[-+]?([1-9][0-9_]*(:[0-5]?[0-9])+|[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]*)"
_MISREAD = re.compile(f"{_OCTAL}|{_BASE_60}")


def refuse_misread_numbers(file: Path) -> None:
    """Refuse ``010``, which YAML takes for 8, and ``1:30``, which it takes for 90. The file must be valid YAML.

    Raises:
        RecipeError: it has such a number, without quotes.
    """
    for event in yaml.parse(file.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        plain = isinstance(event, yaml.ScalarEvent) and event.implicit[0] and not event.style
        if plain and _MISREAD.fullmatch(event.value):
            where = f"{file}, line {event.start_mark.line + 1}, column {event.start_mark.column + 1}"
            problem = f"{where}: YAML takes {event.value} for the number {yaml.safe_load(event.value)}"
            raise RecipeError(
                "", problem, "write that number if it is meant, without 0 before it or colons; quote it if it is a text"
            )
