"""Reads the type of a parameter as its author meant it: what stands in ``Annotated``, in ``pydantic.Field``, and in the default.

What always holds: nothing that an author wrote beside a type is dropped silently. It describes or limits the parameter, or the
function is refused. pydantic is not needed: where an author uses it, it has been imported.
"""

import dataclasses
import datetime
import inspect
import sys
import types
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import reduce
from typing import Annotated, Any, Literal, Optional, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from msgspec import Meta

_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
_TEXTS = ("title", "description", "examples", "extra_json_schema")
_UNREAD = ("alias", "validation_alias", "default_factory", "discriminator")
"""Settings of ``pydantic.Field`` that change what a call looks like, and that a tool does not follow."""
_FORMATS: Mapping[object, str] = {datetime.datetime: "date-time", datetime.time: "time"}
"""JSON Schema's names of the texts that some types are read from, where msgspec names none."""


class _Said(msgspec.Struct):
    """What is said of a parameter beside its type, as arguments of :class:`msgspec.Meta`."""

    limits: dict[str, Any] = {}
    texts: dict[str, Any] = {}

    def add(self, metadata: object) -> None:
        """Add one entry of an ``Annotated``.

        Raises:
            TypeError: it is not understood.
        """
        if isinstance(metadata, str):
            self.texts["description"] = metadata
        elif isinstance(metadata, Meta):
            self._take(metadata)
        elif _is_field(metadata):
            self._add_field(metadata)
        elif isinstance(metadata, Iterable) and not isinstance(metadata, type):  # such as annotated_types.Interval
            for each in metadata:
                self.add(each)
        elif isinstance(getattr(metadata, "documentation", None), str):  # typing_extensions.Doc
            self.texts["description"] = metadata.documentation  # type: ignore[attr-defined]
        elif not self._take(metadata):
            remedy = "write a text, msgspec.Meta(...) or pydantic.Field(...), or leave it out"
            raise TypeError(f"{metadata!r} in its Annotated[...] is not understood; {remedy}")

    def _add_field(self, field: Any) -> None:
        for name in _UNREAD:
            if getattr(field, name) is not None:
                raise TypeError(f"{name} of its pydantic.Field is not followed; leave it out")
        for each in field.metadata:
            self.add(each)
        self.texts |= {name: value for name in ("title", "description", "examples") if (value := getattr(field, name))}
        if isinstance(field.json_schema_extra, dict):
            self.texts["extra_json_schema"] = field.json_schema_extra

    def _take(self, metadata: object) -> bool:
        """Take the attributes that have msgspec's names, as annotated_types and pydantic give them; false if there are none."""
        found = False
        for names, said in ((_LIMITS, self.limits), (_TEXTS, self.texts)):
            for name in names:
                if (value := getattr(metadata, name, None)) is not None:
                    said[name], found = value, True
        return found

    def type_of(self, base: Any) -> Any:
        """Return ``base`` with all that was said of it. The limits of a union are those of its members other than None."""
        if self.limits:
            limit = Meta(**self.limits)
            members = [each if each is types.NoneType else Annotated[each, limit] for each in _members(base)]
            base = Union[tuple(members)]  # noqa: UP007 - of a list
        return Annotated[base, Meta(**self.texts)] if self.texts else base


def parameter_type(annotation: Any, default: object) -> tuple[Any, Any]:
    """Return the type of a parameter as msgspec reads it, and its default as the function gets it.

    ``default`` is the parameter's own, or ``inspect.Parameter.empty``, and so is the one returned. A default of None makes the
    type one that may be None.

    Raises:
        TypeError: something that stands beside the type is not understood, or the default does not fit the type or is shared by
            all calls; the message says what to write instead.
    """
    said = _Said()
    if get_origin(annotation) is Annotated:
        annotation, *metadata = get_args(annotation)
        for each in metadata:
            said.add(each)
    if _is_field(default):
        said.add(default)
        default = default.default if default.default is not _pydantic_undefined() else inspect.Parameter.empty  # type: ignore[attr-defined]
    base = _read(annotation)
    if default is None and base is not Any and types.NoneType not in _members(base):
        base = Optional[base]  # noqa: UP045 - of a value
    read = said.type_of(base)
    return read, default if default is inspect.Parameter.empty else _fitting(default, read)


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _fitting(default: object, read: Any) -> object:
    """Return ``default`` as the function gets it, e.g. the member of an Enum whose value was written.

    Raises:
        TypeError: it does not fit, or all calls would share it.
    """
    frozen = getattr(getattr(type(default), "__dataclass_params__", None), "frozen", True)
    if isinstance(default, msgspec.Struct):
        frozen = type(default).__struct_config__.frozen
    if not frozen or (isinstance(default, list | dict | set | bytearray) and default):
        remedy = "write `= None` and make it in the method, or use what cannot change, such as a tuple or a frozen dataclass"
        raise TypeError(
            f"its default {default!r} would be shared by all calls, and what one does to it the next would see; {remedy}"
        )
    try:
        plain = msgspec.to_builtins(default, str_keys=True)
    except TypeError as error:
        raise TypeError(f"its default {default!r} cannot be shown to the model ({error}); write one that JSON has") from error
    try:
        return msgspec.convert(plain, read, str_keys=True)
    except msgspec.ValidationError as error:
        raise TypeError(f"its default {default!r} does not fit its type ({error}); change one of them") from error


def _read(annotation: Any) -> Any:
    """Return a type as msgspec reads it, with what stands in each ``Annotated`` within it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return annotation
    if origin is Annotated:
        said = _Said()
        for each in arguments[1:]:
            said.add(each)
        return said.type_of(_read(arguments[0]))
    if not arguments:
        _check_fields(annotation, set())
        format_ = _FORMATS.get(annotation) if isinstance(annotation, type) else None
        return Annotated[annotation, Meta(extra_json_schema={"format": format_})] if format_ else annotation
    if origin in (Union, types.UnionType):
        return reduce(lambda one, other: Union[one, other], map(_read, arguments))  # noqa: UP007 - of values
    read = tuple(each if each is Ellipsis or isinstance(each, list) else _read(each) for each in arguments)
    made = annotation if read == arguments else origin[read]
    if isinstance(origin, type) and issubclass(origin, Mapping) and (keys := _key_schema(arguments[0])):
        return Annotated[made, Meta(extra_json_schema={"propertyNames": keys})]
    return made


def _key_schema(keys: Any) -> dict[str, Any]:
    """The JSON schema of a dictionary's keys, which JSON has as texts only; none if any text may be one."""
    if keys is int:
        return {"pattern": "^(0|-?[1-9][0-9]*)$"}
    if get_origin(keys) is Literal:
        return {"enum": [str(each) for each in get_args(keys)]}
    if isinstance(keys, type) and issubclass(keys, Enum):
        return {"enum": [str(each.value) for each in keys]}
    return {}


def _check_fields(annotation: Any, seen: set[Any]) -> None:
    """Look into classes of the author's: msgspec reads their fields, and drops what it does not know.

    Raises:
        TypeError: a field says something that would be dropped.
    """
    is_class = isinstance(annotation, type) and (
        dataclasses.is_dataclass(annotation)
        or is_typeddict(annotation)
        or issubclass(annotation, msgspec.Struct)
        or hasattr(annotation, "_fields")
    )
    if not is_class or annotation in seen:
        return
    seen.add(annotation)
    for name, hint in get_type_hints(annotation, include_extras=True).items():
        _check_hint(hint, f"field {name!r} of {annotation.__name__}", seen)


def _check_hint(hint: Any, place: str, seen: set[Any]) -> None:
    if get_origin(hint) is Literal:
        return
    if get_origin(hint) is Annotated:
        dropped = [each for each in hint.__metadata__ if not isinstance(each, Meta)]
        if dropped:
            raise TypeError(f"{place} says {dropped[0]!r}, which is read of parameters only; write msgspec.Meta(...) there")
    _check_fields(hint, seen)
    for each in get_args(hint):
        _check_hint(each, place, seen)


def _is_field(value: object) -> bool:
    """Whether a value is what ``pydantic.Field`` returns."""
    fields = sys.modules.get("pydantic.fields")
    return fields is not None and isinstance(value, fields.FieldInfo)


def _pydantic_undefined() -> object:
    return sys.modules["pydantic.fields"].PydanticUndefined
