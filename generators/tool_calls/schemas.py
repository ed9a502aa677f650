"""The schemas of tools as vLLM's parsers need them: they look at the types that a parameter names, and follow no reference."""

from collections.abc import Mapping
from typing import Any

import msgspec

from asyncrl.core.messages import ToolSpec

_DEEPEST = 8
"""References within references that are followed. What lies deeper, as in a schema that refers to itself, is any value."""


def without_references(tool: ToolSpec) -> ToolSpec:
    """Return the tool with what its schema refers to in place of each ``$ref``."""
    return msgspec.structs.replace(tool, parameters=_resolved(tool.parameters, tool.parameters, _DEEPEST))


def _resolved(part: Any, whole: Mapping[str, Any], depth: int) -> Any:
    match part:
        case {"$ref": str(reference), **beside}:
            found = _found(reference, whole) if depth else {}
            return _resolved({**found, **beside}, whole, depth - 1) if depth else {}
        case dict():
            return {key: _resolved(value, whole, depth) for key, value in part.items() if key not in ("$defs", "definitions")}
        case list():
            return [_resolved(value, whole, depth) for value in part]
        case _:
            return part


def _found(reference: str, whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a reference within the schema (``#/$defs/Name``) names; a schema of any value if it names nothing."""
    found: Any = whole
    for step in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}
