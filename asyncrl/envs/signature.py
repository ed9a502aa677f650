"""The typed parameters of a Python function as a msgspec struct: one source for JSON schema, validation and usage text.

Tools and environment options both use it, so arguments are always checked against the signature that is documented.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import msgspec


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
        TypeError: a parameter has no type, has one that JSON cannot carry, or is positional-only or variadic.
    """

    def __init__(self, function: Callable[..., Any], name: str, is_static: bool = False) -> None:
        parameters = list(inspect.signature(function).parameters.values())[0 if is_static else 1 :]
        try:
            types = get_type_hints(function, include_extras=True)
        except NameError as error:
            raise TypeError(f"{name}: a type in its signature cannot be resolved ({error}); define it at module level") from error
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for parameter in parameters:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise TypeError(f"{name}: {parameter} cannot be passed by name; use ordinary parameters")
            if parameter.name not in types:
                raise TypeError(f"{name}: parameter {parameter.name!r} has no type; write `{parameter.name}: str`, for example")
            field_type = types[parameter.name]
            has_default = parameter.default is not parameter.empty
            fields.append((parameter.name, field_type, parameter.default) if has_default else (parameter.name, field_type))
        self.names = tuple(parameter.name for parameter in parameters)
        self._struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self.schema = self._schema(name)
        self.usage = name + _signature_text(function, parameters)

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check ``arguments`` and fill in defaults.

        Raises:
            msgspec.ValidationError: an argument is missing, unknown or of the wrong type; the message says which.
        """
        converted = msgspec.convert(dict(arguments), self._struct)
        return {name: getattr(converted, name) for name in self.names}

    def _schema(self, name: str) -> dict[str, Any]:
        try:
            (_,), components = msgspec.json.schema_components([self._struct], ref_template="#/$defs/{name}")
        except TypeError as error:
            raise TypeError(f"{name}: JSON cannot carry a type in its signature ({error}); use types that JSON has") from error
        schema: dict[str, Any] = components.pop("Arguments")
        del schema["title"]
        return schema | {"$defs": components} if components else schema


def _signature_text(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> str:
    types = get_type_hints(function)
    return str(inspect.Signature([parameter.replace(annotation=types[parameter.name]) for parameter in parameters]))
