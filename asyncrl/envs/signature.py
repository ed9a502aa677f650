"""The typed parameters of a Python function as a msgspec struct: one source for JSON schema, validation and usage text.

Tools and environment options both use it, so arguments are always checked against the signature that is documented.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

import msgspec

from asyncrl.core.messages import ToolSpec
from asyncrl.envs.call_usage import text_of_schema, usage_of
from asyncrl.envs.parameter_types import parameter_type

Field = tuple[str, Any, Any]
"""Name, type and default of a parameter."""
_DEEPEST = 50


class Parameters:
    """The parameters of ``function`` without ``self``.

    Attributes:
        names: the parameters' names.
        schema: JSON schema of type object.
        usage: how to call the function, e.g. ``calculator(expression: str)``.

    Args:
        function: a plain or async function whose first parameter is ``self``, unless ``is_static``.
        name: the function's name in ``usage`` and in errors.

    Raises:
        TypeError: a parameter has no type, has one that JSON cannot carry or a default that does not fit, or is positional-only
            or variadic.
    """

    def __init__(self, function: Callable[..., Any], name: str, is_static: bool = False) -> None:
        parameters = list(inspect.signature(function).parameters.values())[0 if is_static else 1 :]
        hints = _hints(function, name)
        fields = self._fields = list[Field]()
        for parameter in parameters:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                remedy = "use ordinary parameters; if a decorator hides them, write functools.wraps in it"
                raise TypeError(f"{name}: {parameter} cannot be passed by name; {remedy}")
            if parameter.name not in hints:
                raise TypeError(f"{name}: parameter {parameter.name!r} has no type; write `{parameter.name}: str`, for example")
            try:
                fields.append((parameter.name, *parameter_type(hints[parameter.name], parameter.default)))
            except (TypeError, ValueError) as error:
                raise TypeError(f"{name}: parameter {parameter.name!r}: {error}") from error
        self.names = tuple(parameter.name for parameter in parameters)
        try:
            self._struct = _struct(fields)
            self.schema = _schema(self._struct)
            self.usage = usage_of(name, fields)
        except TypeError as error:
            remedy = "use types that JSON has, dataclasses or TypedDicts"
            raise TypeError(f"{name}: JSON cannot carry a type in its signature ({error}); {remedy}") from error

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made of; a struct cannot be copied."""
        return {name: value for name, value in vars(self).items() if name != "_struct"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make a copy."""
        vars(self).update(state)
        if "_fields" in state:
            self._struct = _struct(self._fields)

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check ``arguments`` and fill in defaults. As in JSON Schema, 3.0 is an integer.

        Raises:
            msgspec.ValidationError: an argument is missing, unknown or of the wrong type; the message says which.
        """
        try:
            converted = msgspec.convert(dict(arguments), self._struct, str_keys=True)
        except msgspec.ValidationError:
            converted = msgspec.convert(_with_integers(dict(arguments)), self._struct, str_keys=True)
        return {name: getattr(converted, name) for name in self.names}


class SchemaParameters(Parameters):
    """Parameters that others describe by a JSON schema."""

    def __init__(self, spec: ToolSpec) -> None:
        self.schema = spec.parameters
        properties = spec.parameters.get("properties") or {}
        required = spec.parameters.get("required") or []
        self.names = tuple(properties)
        shown = (f"{name}{'' if name in required else '?'}: {text_of_schema(schema)}" for name, schema in properties.items())
        self.usage = f"{spec.name}({', '.join(shown)})"

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as they are."""
        return dict(arguments)


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"{name}: a type in its signature cannot be resolved ({error}); define it at module level") from error
    except (TypeError, SyntaxError, AttributeError) as error:
        raise TypeError(f"{name}: what its signature has for a type is none ({error}); write `str`, for example") from error


def _struct(fields: Sequence[Field]) -> type[msgspec.Struct]:
    return msgspec.defstruct("Arguments", _defined(fields), kw_only=True, forbid_unknown_fields=True)


def _defined(fields: Sequence[Field]) -> list[tuple[str, Any] | tuple[str, Any, Any]]:
    """The fields as msgspec defines them."""
    return [(name, kind) if default is inspect.Parameter.empty else (name, kind, default) for name, kind, default in fields]


def _schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of a struct. A class of the author's may have the name of ours."""
    (outer,), components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    schema: dict[str, Any] = components.pop(outer["$ref"].removeprefix("#/$defs/"))
    del schema["title"]
    for each in schema["properties"].values():
        if isinstance(each.get("default"), float) and not math.isfinite(each["default"]):
            del each["default"]  # JSON has no such number
    return schema | {"$defs": components} if components else schema


def _with_integers(value: Any, depth: int = 0) -> Any:
    """Return a value of JSON with integers for numbers such as 3.0, as deep as any type goes that an author would write."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if depth == _DEEPEST:
        return value
    if isinstance(value, dict):
        return {key: _with_integers(each, depth + 1) for key, each in value.items()}
    return [_with_integers(each, depth + 1) for each in value] if isinstance(value, list) else value


def finite(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a call, which have no number that JSON lacks: it would be lost on its way to another process.

    Raises:
        msgspec.ValidationError: they have one; models write ``NaN`` and ``1e999``, and parsers read them.
    """
    left: list[Any] = [arguments]
    while left:
        value = left.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise msgspec.ValidationError(f"`{value}` is no number that JSON has")
        left += value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return arguments
