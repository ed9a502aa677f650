"""Makes text of what a tool returned: text as it is, everything else as JSON.

What always holds: nothing becomes something else silently. Numbers that JSON lacks are written as Python writes them (``NaN``,
``Infinity``); what has no text, such as bytes or an object of any class, is an error that names the tool.
"""

import inspect
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from contextlib import aclosing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import AsyncGeneratorType
from typing import Any, NamedTuple, NoReturn
from uuid import UUID

import msgspec

from asyncrl.core.plug_ins.users_error import WrongResult
from asyncrl.core.text import short

_BYTES = (bytes, bytearray, memoryview)
_TEXTS = (date, datetime, time, timedelta, Decimal, UUID)
"""Types that are texts in JSON, and apart from those texts as the keys of a dictionary."""
_SIMPLE = (str, int, float, type(None))
_FINE_TIMES = re.compile(r".[mM]8\[\d*[npfa]s\]")
"""NumPy's names of times that are finer than Python's."""


class Pending(NamedTuple):
    """Something that a tool returned and that is to be waited for in the event loop."""

    returned: object


def is_pending(returned: object) -> bool:
    """Whether what a tool returned is to be waited for: it is a coroutine, or yields its results asynchronously."""
    return inspect.isawaitable(returned) or isinstance(returned, AsyncIterator)


async def settled(returned: object) -> object:
    """Wait for what a tool returned. What it yields asynchronously becomes a list."""
    while is_pending(returned):
        if isinstance(returned, AsyncGeneratorType):
            async with aclosing(returned):
                returned = [each async for each in returned]
        elif isinstance(returned, AsyncIterator):
            returned = [each async for each in returned]
        elif inspect.isawaitable(returned):
            returned = await returned
    return returned


def text_of_result(method: Callable[..., Any], returned: object) -> str:
    """Return the text that the model reads. An iterator is read to its end.

    Raises:
        WrongResult: ``method`` returned what cannot be written.
    """
    if isinstance(returned, str):
        return str.__str__(returned)
    try:
        read = msgspec.to_builtins(returned, builtin_types=_BYTES + _TEXTS, enc_hook=_checked)
        _refuse_merged_keys(returned)
        plain = msgspec.to_builtins(read, str_keys=True, builtin_types=_BYTES)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), default=_refuse)
    except _Unwritable as error:
        raise WrongResult(method, f"returned {error}") from error
    except (TypeError, RecursionError) as error:
        remedy = "return text, numbers, lists, dictionaries with text for keys, or dataclasses"
        raise WrongResult(method, f"returned {short(returned)}, which JSON cannot carry ({error}); {remedy}") from error


class _Unwritable(Exception):
    """Something in a result has no text; the message says what, and what to return instead."""


def _checked(value: Any) -> Any:
    plain = _plain(value)
    _refuse_merged_keys(plain)
    return plain


def _plain(value: Any) -> Any:
    """Turn what msgspec does not know into what it knows."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if callable(getattr(value, "tolist", None)):  # arrays, tensors, and their numbers
        labels = getattr(value, "index", None)
        return _by_label(value, labels) if callable(getattr(labels, "tolist", None)) else _array(value)
    if callable(getattr(value, "model_dump", None)):  # pydantic
        return value.model_dump()
    names = getattr(value, "keys", None)
    if isinstance(value, Sequence) and callable(names):  # a row of a database
        return _named(names(), value)
    if isinstance(value, Iterator | Sequence | Set | ValuesView):
        return list(value)
    return _refuse(value)


def _array(array: Any) -> Any:
    """Return an array, or one number of it, as Python has it; records with the names of their fields."""
    kind: Any = getattr(array, "dtype", None)
    if names := getattr(kind, "names", None):
        return list(array) if array.shape else {name: array[name] for name in names}
    if _FINE_TIMES.fullmatch(getattr(kind, "str", "")):  # of which NumPy makes plain integers
        rounded = array.astype("m8[us]") if kind.kind == "m" else None
        # A duration that Python's microseconds cannot hold is a text, such as "1500 nanoseconds"; so is a date.
        return array.astype(str).tolist() if rounded is None or (rounded < array).any() else rounded.tolist()
    return array.tolist()


def _by_label(series: Any, index: Any) -> Any:
    """Return a series of pandas as a dictionary, as its values mean little without their labels.

    Returns:
        A list of the values if the labels only count them, and of pairs if several have one label, as rows of one key do.
    """
    values, labels = series.tolist(), index.tolist()
    if labels == list(range(len(values))):
        return values
    return _named(labels, values)


def _named(names: Iterable[Any], values: Sequence[Any]) -> Any:
    """Return values by their names; pairs if several have one name."""
    pairs = list(zip(names, values, strict=True))
    named = {str(name): value for name, value in pairs}
    return named if len(named) == len(pairs) else pairs


def _refuse_merged_keys(result: Any) -> None:
    """Refuse dictionaries two of whose keys are one in JSON, such as 1 and "1": one of the values would be lost."""
    left: list[Any] = [result]
    seen = dict[int, Any]()  # one may hold itself
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, dict):
            known = dict[str, Any]()
            for key in value:
                is_text = isinstance(key, str)
                (name,) = (key,) if is_text else msgspec.to_builtins({key: None}, str_keys=True, enc_hook=_plain)
                if (other := known.setdefault(name, key)) is not key:
                    raise _Unwritable(
                        f"a dictionary with the keys {other!r} and {key!r}, which are one in JSON; rename one of them"
                    )
            value = value.values()
        elif fields := _fields(value):
            value = [getattr(value, name, None) for name in fields]
        elif not isinstance(value, list | tuple | set | frozenset):
            continue
        left += [each for each in value if not isinstance(each, _SIMPLE)]


def _fields(value: object) -> Iterable[str]:
    """The names of a value's fields: those of a struct of msgspec, of a dataclass, or of a class of attrs."""
    if attributes := getattr(value, "__attrs_attrs__", ()):
        return [each.name for each in attributes]
    fields: Iterable[str] = getattr(value, "__struct_fields__", ()) or getattr(value, "__dataclass_fields__", ())
    return fields


def _refuse(value: object) -> NoReturn:
    if isinstance(value, _BYTES):
        raise _Unwritable("bytes, which are no text; decode them")
    kind = type(value)
    remedy = "return text, numbers, lists, dictionaries or dataclasses"
    raise _Unwritable(f"an object of class {kind.__module__}.{kind.__qualname__}, which has no text; {remedy}")
