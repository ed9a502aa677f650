"""Plain data as JSON, with their Python types: what the process of an answer and the process that judges it tell each other.

What always holds: what was unpacked is of built-in types, or an array of numbers, or what the caller's ``other`` made of a
reference. Nothing of the other process is run by unpacking, comparing or printing it.
"""

import builtins
import importlib
import json
import os
import struct
from collections import Counter, namedtuple
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

LONGEST = 64 << 20
"""Bytes of one message."""
_LENGTH = struct.Struct("!I")
_SMALL = 1 << 62
"""Larger integers travel in hexadecimal: their decimal digits take quadratic time, and Python refuses more than 4,300."""
_NUMERIC = "biufc"

_MADE_OF: dict[tuple[str, str], Callable[[Any], list[Any]]] = {
    ("decimal", "Decimal"): lambda value: [str(value)],
    ("fractions", "Fraction"): lambda value: [value.numerator, value.denominator],
    ("collections", "deque"): lambda value: [list(value), value.maxlen],
    ("datetime", "timedelta"): lambda value: [value.days, value.seconds, value.microseconds],
    ("datetime", "date"): lambda value: [value.year, value.month, value.day],
    ("datetime", "time"): lambda value: [value.hour, value.minute, value.second, value.microsecond],
    ("datetime", "datetime"): lambda value: [*value.timetuple()[:6], value.microsecond],
}
"""What values of the standard library are made of, by module and class. Times with a zone stay where they are."""


_NAMES_OF_DATA = frozenset(name for kind in (str, bytes, set, float, list, dict, tuple) for name in dir(kind))
"""No fields of a named tuple: a function of the answer's there would be asked what only data may answer."""


class Ended(BaseException):
    """The other process has ended, or sent what is no message."""


class Channel:
    """Messages over two pipes: JSON, behind its length in 4 bytes."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing

    def send(self, message: Any) -> None:
        """Send a message."""
        body = json.dumps(message).encode()
        if len(body) > LONGEST:
            raise ValueError(f"{len(body)} bytes are more than the {LONGEST} of a message")
        left = memoryview(_LENGTH.pack(len(body)) + body)
        try:
            while left:
                left = left[os.write(self._writing, left) :]
        except OSError as error:
            raise Ended from error

    def receive(self) -> Any:
        """Wait for the next message.

        Raises:
            Ended: there is none.
        """
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if size > LONGEST:
            raise Ended
        try:
            return json.loads(self._read(size))
        except (ValueError, RecursionError) as error:
            raise Ended from error

    def _read(self, size: int) -> bytes:
        chunks = []
        while size:
            try:
                chunk = os.read(self._reading, min(size, 1 << 20))
            except OSError as error:
                raise Ended from error
            if not chunk:
                raise Ended
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)


def pack(value: Any, other: Callable[[Any], dict[str, Any]]) -> Any:
    """The JSON of a value; what is no plain data is left to ``other``."""
    if isinstance(value, tuple) and (fields := _fields_of(value)):
        return {"named": [type(value).__name__, fields, [pack(each, other) for each in tuple.__iter__(value)]]}
    if type(value) is Counter:
        return {"value": ["collections", "Counter", pack([dict(value)], other)]}
    match value:
        case None | bool() | float():
            return value if value is None or isinstance(value, bool) else float(value)
        case int():
            return int(value) if -_SMALL < value < _SMALL else {"int": hex(value)}
        case str():
            return str.__str__(value)
        case list():
            return [pack(each, other) for each in list.__iter__(value)]
        case dict():
            return {"dict": [[pack(key, other), pack(held, other)] for key, held in dict.items(value)]}
        case tuple() | set() | frozenset():
            kind: Any = next(each for each in (tuple, set, frozenset) if isinstance(value, each))
            return {kind.__name__: [pack(each, other) for each in kind.__iter__(value)]}
        case bytes() | bytearray():
            return {"bytearray" if isinstance(value, bytearray) else "bytes": value.hex()}
        case complex():
            return {"complex": [value.real, value.imag]}
        case range():
            return {"range": [value.start, value.stop, value.step]}
    kind = (type(value).__module__, type(value).__name__)
    if kind in _MADE_OF and getattr(value, "tzinfo", None) is None:
        return {"value": [*kind, pack(_MADE_OF[kind](value), other)]}
    if kind[0] == "numpy" and getattr(getattr(value, "dtype", None), "kind", "") in _NUMERIC:
        return {"array": [value.dtype.str, list(value.shape), pack(value.tolist(), other)]}
    return other(value)


def unpack(message: Any, other: Callable[[str, Any], Any]) -> Any:
    """The value of which ``message`` is the JSON; a tag that is none of plain data's is left to ``other``.

    Raises:
        Ended: it is no message of :func:`pack`.
    """
    if message is None or isinstance(message, bool | int | float | str):
        return message
    if isinstance(message, list):
        return [unpack(each, other) for each in message]
    try:
        ((tag, held),) = message.items()
        match tag:
            case "tuple" | "set" | "frozenset":
                kind: Any = getattr(builtins, tag)
                return kind(unpack(each, other) for each in held)
            case "dict":
                return {unpack(key, other): unpack(each, other) for key, each in held}
            case "named":
                name, fields, values = held
                return _named(name, tuple(fields))(*[unpack(each, other) for each in values])
            case "int":
                return int(held, 16)
            case "bytes" | "bytearray":
                return getattr(builtins, tag).fromhex(held)
            case "complex" | "range":
                return getattr(builtins, tag)(*held)
            case "value":
                module, name, made_of = held
                return _value(module, name, unpack(made_of, other))
            case "array":
                return _array(*held)
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise Ended from error
    return other(tag, held)


def _fields_of(value: tuple[Any, ...]) -> list[str]:
    """The fields of a named tuple; none if it is another, or one whose fields are called like what data can do."""
    fields = getattr(type(value), "_fields", None)
    named = isinstance(fields, tuple) and len(fields) == len(value) and all(type(each) is str for each in fields)
    return list(fields) if named and fields and not _NAMES_OF_DATA.intersection(fields) else []


@lru_cache(maxsize=64)
def _named(name: str, fields: Sequence[str]) -> Callable[..., Any]:
    if _NAMES_OF_DATA.intersection(fields):
        raise ValueError(name)
    return namedtuple(name, fields)  # which checks the names


def _value(module: str, name: str, made_of: list[Any]) -> Any:
    if (module, name) not in _MADE_OF and (module, name) != ("collections", "Counter"):
        raise ValueError(name)
    return getattr(importlib.import_module(module), name)(*made_of)


def _array(kind: str, shape: list[int], values: Any) -> Any:
    import numpy  # which is only there with ``packages``

    made = numpy.dtype(kind)
    if made.kind not in _NUMERIC:
        raise ValueError(kind)
    return numpy.array(unpack(values, _nothing), dtype=made).reshape(shape)[() if not shape else ...]


def _nothing(tag: str, _: Any) -> Any:
    raise ValueError(tag)
