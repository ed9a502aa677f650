"""Tools as data sets describe them, in the form that the model is told of.

Three forms are known: ``{type: function, function: {...}}``, the same without the frame, and arguments by name in place of a JSON
schema, whose types have Python's names, and each of which may say itself whether it is ``required``. Types of Python (``str``,
``List[int]``, ``dict``) become those of JSON schemas. A tool and its parameters may be the JSON text of what they are.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from asyncrl.core.messages import ToolSpec
from asyncrl.core.text import short

_TYPES = {"str": "string", "int": "integer", "float": "number", "double": "number", "bool": "boolean"}
_TYPES |= dict.fromkeys(("list", "tuple", "set"), "array") | {"dict": "object"}
_JSON = {"string", "integer", "number", "boolean", "array", "object", "null"}
_SCHEMAS = ("parameters", "input_schema", "inputSchema")
"""Keys under which OpenAI, Anthropic and MCP have the schema of a tool's arguments."""
_MISNAMED = ("arguments", "args", "properties", "schema")
"""Keys under which others may have it; it is not guessed whether it is one."""
_MAY_BE_NULL = ("default", "const")
"""Keys of a schema that say something where they are null. Tables have a null under every other key that only other rows have."""
_CHOICES = ("anyOf", "oneOf", "allOf")
"""Keys of a schema that have lists of schemas."""
_FRAME = re.compile(r"optional\[(.*)\]", re.IGNORECASE)
_OPTIONAL = re.compile(r"^\s*optional\[|,\s*optional\s*$", re.IGNORECASE)


def described_tools(tools: object) -> tuple[ToolSpec, ...]:
    """Read a list of tools; None is none.

    Raises:
        ValueError: they are no descriptions of tools; the text reads well after "has".
    """
    if tools is None:
        return ()
    if not isinstance(tools, list | tuple):
        raise ValueError(f"tools {short(tools)}; give a list of descriptions")
    specs = tuple(map(_spec, tools))
    if twice := sorted({spec.name for spec in specs if sum(each.name == spec.name for each in specs) > 1}):
        raise ValueError(f"two tools named {twice[0]!r}, so that a call would not say which it means")
    return specs


def _spec(tool: object) -> ToolSpec:
    read = _decoded(tool)
    function = _decoded(read.get("function", read)) if isinstance(read, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ValueError(
            f"the tool {short(tool)}; write it as {{function: {{name: NAME, description: TEXT, parameters: SCHEMA}}}}"
        )
    name, description = function["name"], function.get("description") or ""
    key = next((key for key in _SCHEMAS if function.get(key)), None)
    if key is None and (misnamed := [each for each in _MISNAMED if function.get(each)]):
        raise ValueError(
            f"tool {name!r} with {misnamed[0]!r}, which would not reach the model; name it parameters, or take it out"
        )
    parameters = {} if key is None else _decoded(function[key])
    if not isinstance(description, str) or not isinstance(parameters, Mapping):
        raise ValueError(
            f"tool {name!r} with description {short(description)} and parameters {short(parameters)}; see docs/how-to/tasks.md"
        )
    return ToolSpec(name, description, _schema(parameters, name))


def _decoded(value: object) -> object:
    """Return what a text is the JSON of; the text itself if it is none."""
    try:
        return msgspec.json.decode(value) if isinstance(value, str) else value
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return value


def _schema(parameters: Mapping[str, Any], tool: str) -> dict[str, Any]:
    """Return the JSON schema of a tool's parameters, of type object."""
    if parameters.get("type") in ("object", "dict") or isinstance(parameters.get("properties"), Mapping):
        schema = _with_json_types(parameters, tool)
        return schema | {"type": "object", "properties": schema.get("properties") or {}}
    properties: dict[str, Any] = {}
    required = []
    for name, argument in _without_nulls(parameters).items():
        if not isinstance(argument, Mapping):
            raise ValueError(f"tool {tool!r} with parameter {name!r}: {short(argument)}; give a JSON schema of type object")
        named = argument.get("type")
        optional = isinstance(named, str) and _OPTIONAL.search(named) is not None
        own = {key: value for key, value in argument.items() if key != "required" or not isinstance(value, bool)}
        properties[name] = _with_json_types(own, tool)
        if argument["required"] if len(own) < len(argument) else not optional and "default" not in own:
            required.append(name)
    return {"type": "object", "properties": properties, "required": required}


def _with_json_types(schema: Mapping[str, Any], tool: str) -> dict[str, Any]:
    """Return a schema whose types are those of JSON schemas, as deep as it goes. Others are told in words.

    Raises:
        ValueError: it is none; the text reads well after "has".
    """
    own = {key: value for key, value in schema.items() if value is not None or key in _MAY_BE_NULL}
    named, properties = own.get("type"), own.get("properties", {})
    if isinstance(properties, Mapping):
        properties = _without_nulls(properties)
    known = {
        "type": named is None or isinstance(named, str) or _are_texts(named),
        "required": _are_texts(own.get("required", [])),
        "properties": isinstance(properties, Mapping) and all(isinstance(each, Mapping | bool) for each in properties.values()),
    }
    if wrong := next((key for key, holds in known.items() if not holds), ""):
        raise ValueError(f"tool {tool!r} with {wrong} {short(own[wrong])} in its schema; write it as JSON schemas have it")
    if isinstance(named, str) and named not in _JSON:
        del own["type"]
        found = _json_type(named)
        own |= found if found else {"description": f"{own.get('description') or ''} ({named})".strip()}
    for key in ("items", "additionalProperties"):
        if isinstance(own.get(key), Mapping):
            own[key] = _with_json_types(own[key], tool)
    for key in _CHOICES:
        if isinstance(own.get(key), list):
            own[key] = [_with_json_types(each, tool) if isinstance(each, Mapping) else each for each in own[key]]
    if "properties" in own:
        own["properties"] = {
            name: _with_json_types(each, tool) if isinstance(each, Mapping) else each for name, each in properties.items()
        }
    return own


def _without_nulls(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a tool has: in a table, a null stands for those that only other tools have."""
    return {name: each for name, each in arguments.items() if each is not None}


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def _json_type(named: str) -> dict[str, Any]:
    """Return the type of a JSON schema for one of Python's; empty if there is none."""
    named = named.strip()
    if named.lower().endswith("optional"):
        named = named[: -len("optional")].rstrip(" ,")
    if (framed := _FRAME.fullmatch(named)) is not None:
        named = framed[1]
    outer, _, inner = named.partition("[")
    outer = outer.strip().lower().removeprefix("typing.")
    kind = _TYPES.get(outer, outer if outer in _JSON else "")
    if not kind:
        return {}
    items = _json_type(inner.removesuffix("]")) if kind == "array" and inner and outer in ("list", "set") else {}
    return {"type": kind} | ({"items": items} if items else {})
