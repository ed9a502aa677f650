"""Nested mappings laid flat."""

from collections.abc import Iterator, Mapping
from typing import Any


def flatten(section: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in nested mappings; an empty mapping is a value."""
    for key, value in section.items():
        here = f"{place}.{key}" if place else str(key)
        if isinstance(value, Mapping) and value:
            yield from flatten(value, here)
        else:
            yield here, value
