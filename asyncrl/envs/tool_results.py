"""Makes text of what a tool returned: text as it is, everything else as JSON.

What always holds: nothing becomes something else silently. Numbers that JSON lacks are written as Python writes them (``NaN``,
``Infinity``); what has no text, such as bytes or an object of any class, is an error that names the tool.
"""

import inspect
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set, ValuesView
from contextlib import aclosing
from types import AsyncGeneratorType
from typing import Any, NamedTuple, NoReturn

import msgspec

from asyncrl.core.plug_ins.users_error import WrongResult
from asyncrl.core.text import short

_BYTES = (bytes, bytearray, memoryview)


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
        plain = msgspec.to_builtins(returned, str_keys=True, builtin_types=_BYTES, enc_hook=_plain)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), default=_refuse)
    except _Unwritable as error:
        raise WrongResult(method, f"returned {error}") from error
    except (TypeError, RecursionError) as error:
        remedy = "return text, numbers, lists, dictionaries with text for keys, or dataclasses"
        raise WrongResult(method, f"returned {short(returned)}, which JSON cannot carry ({error}); {remedy}") from error


class _Unwritable(Exception):
    """Something in a result has no text; the message says what, and what to return instead."""


def _plain(value: Any) -> Any:
    """Turn what msgspec does not know into what it knows."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if callable(getattr(value, "tolist", None)):  # arrays, tensors, and their numbers
        labels = getattr(value, "index", None)
        return _by_label(value, labels) if callable(getattr(labels, "tolist", None)) else value.tolist()
    if callable(getattr(value, "model_dump", None)):  # pydantic
        return value.model_dump()
    if isinstance(value, Iterator | Sequence | Set | ValuesView):
        return list(value)
    return _refuse(value)


def _by_label(series: Any, index: Any) -> Any:
    """Return a series of pandas as a dictionary, as its values mean little without their labels.

    Returns:
        A list of the values if the labels only count them, and of pairs if several have one label, as rows of one key do.
    """
    values, labels = series.tolist(), index.tolist()
    if labels == list(range(len(values))):
        return values
    named = {str(label): value for label, value in zip(labels, values, strict=True)}
    return named if len(named) == len(values) else list(zip(labels, values, strict=True))


def _refuse(value: object) -> NoReturn:
    if isinstance(value, _BYTES):
        raise _Unwritable("bytes, which are no text; decode them")
    kind = type(value)
    remedy = "return text, numbers, lists, dictionaries or dataclasses"
    raise _Unwritable(f"an object of class {kind.__module__}.{kind.__qualname__}, which has no text; {remedy}")
