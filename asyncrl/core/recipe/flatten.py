"""Flattens nested mappings, such as a recipe."""

from collections.abc import Iterator, Mapping
from typing import Any


def flatten(section: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of every entry of nested mappings; an empty mapping counts as a value."""
    for key, value in section.items():
        here = f"{place}.{key}" if place else str(key)
        if isinstance(value, Mapping) and value:
            yield from flatten(value, here)
        else:
            yield here, value
