"""Writes how a function is called, as a model reads it after a wrong call, e.g. ``look_up(word: str, limit: int = 5)``."""

import json
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from inspect import Parameter
from typing import Any

import msgspec
from msgspec import inspect as types

from asyncrl.core.text import pluralize, without_middle

SHOWN = 600
"""The most characters of the tools that an answer to a wrong call names."""
NEAREST = 3
_LONGEST_NAME = 100
_VALUES = 20
"""The most values of an Enum or Literal that are written out."""
_DEEPEST = 2
"""How deep the fields of classes are written out."""

_NAMES: Mapping[type[types.Type], str] = {
    types.AnyType: "Any",
    types.NoneType: "None",
    types.BoolType: "bool",
    types.IntType: "int",
    types.FloatType: "float",
    types.StrType: "str",
    types.BytesType: "base64",
    types.ByteArrayType: "base64",
    types.MemoryViewType: "base64",
    types.DateTimeType: "datetime",
    types.TimeType: "time",
    types.DateType: "date",
    types.TimeDeltaType: "duration",
    types.UUIDType: "uuid",
    types.DecimalType: "decimal",
}


def usage_of(name: str, parameters: Iterable[tuple[str, Any, Any]]) -> str:
    """Write how ``name`` is called. Each parameter is its name, its type and its default, ``Parameter.empty`` for none."""
    shown = (
        f"{each}: {_text(types.type_info(kind), 0)}{'' if default is Parameter.empty else f' = {_default(default)}'}"
        for each, kind, default in parameters
    )
    return f"{name}({', '.join(shown)})"


def _default(default: object) -> str:
    try:
        return repr(msgspec.to_builtins(default, str_keys=True, builtin_types=(bytes,)))
    except TypeError:
        return repr(default)


def _text(kind: types.Type, depth: int) -> str:
    match kind:
        case types.Metadata():
            return _text(kind.type, depth)
        case types.UnionType():
            return " | ".join(_text(each, depth) for each in kind.types)
        case types.LiteralType():
            return _one_of(kind.values)
        case types.EnumType():
            return _one_of([each.value for each in kind.cls])
        case types.ListType() | types.SetType() | types.FrozenSetType() | types.VarTupleType():
            return f"list[{_text(kind.item_type, depth)}]"
        case types.TupleType():
            return f"[{', '.join(_text(each, depth) for each in kind.item_types)}]"
        case types.DictType():
            return f"dict[{_text(kind.key_type, depth)}, {_text(kind.value_type, depth)}]"
        case types.StructType() | types.DataclassType() | types.TypedDictType() | types.NamedTupleType():
            if depth == _DEEPEST:
                return kind.cls.__name__
            fields = (f"{each.encode_name}{'' if each.required else '?'}: {_text(each.type, depth + 1)}" for each in kind.fields)
            return f"{{{', '.join(fields)}}}"
        case _:
            return _NAMES.get(type(kind), type(kind).__name__)


def _one_of(values: Iterable[object], written: Callable[[object], str] = repr) -> str:
    several = list(values)
    shown = " | ".join(map(written, several[:_VALUES]))
    return f"{shown} | ... ({len(several)} values)" if len(several) > _VALUES else shown


def text_of_schema(schema: object, depth: int = 0) -> str:
    """Write the values that a JSON schema lets through, as ``"asc" | "desc"`` or ``integer or null``."""
    if not isinstance(schema, dict) or depth == _DEEPEST:
        return "any"
    if "const" in schema:
        return json.dumps(schema["const"])
    if isinstance(values := schema.get("enum"), list):
        return _one_of(values, json.dumps)
    kinds = schema.get("type")
    if isinstance(alternatives := schema.get("anyOf") or schema.get("oneOf"), list):
        kinds = dict.fromkeys(text_of_schema(each, depth + 1) for each in alternatives)
    elif isinstance(reference := schema.get("$ref"), str):
        kinds = reference.rpartition("/")[2]
    if not kinds:
        return "any"
    return kinds if isinstance(kinds, str) else " or ".join(map(str, kinds))


def choices(called: str, usages: Mapping[str, str]) -> str:
    """Write which tools there are, for a model that called another one: all, or the nearest by name if that is much to read.

    Args:
        called: the name that the model wrote; empty if none could be read.
        usages: how each tool is called, by its name.
    """
    everything = ", ".join(usages.values())
    if len(everything) <= SHOWN:
        return everything or "no tool: there are none"
    nearest = get_close_matches(called[:_LONGEST_NAME], usages, n=NEAREST, cutoff=0.0) if called else list(usages)[:NEAREST]
    shown = ", ".join(without_middle(usages[name], SHOWN // NEAREST) for name in nearest)
    return f"one of the {pluralize(len(usages), 'tool')}, such as {shown}"
