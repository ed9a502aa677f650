"""Finds in a call what would be lost without a word: an argument that is given twice, and one that has no value or no end.

Parsers take the last value of a key, drop a key without a value, and take what follows a value that does not end for its part.
"""

import ast
import json
import re
from collections import Counter
from typing import Any

from asyncrl.generators.tool_calls.formats import ValueMarks


class _Repeated(ValueError):
    """A JSON object has a key twice."""


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the JSON object of these pairs, as an ``object_pairs_hook``. Raises ValueError: a key is given twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Repeated(_twice([key for key, _ in pairs]))
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=once)


def repeated_in_json(text: str) -> str:
    """Say what the JSON value gives twice that ``text`` begins with: a key, or a call its arguments; nothing if it is no JSON."""
    try:
        value, _ = _DECODER.raw_decode(text.lstrip())
    except _Repeated as error:
        return str(error)
    except (ValueError, RecursionError):
        return ""
    return (
        "arguments and parameters are both given" if any(map(_gives_both, value if isinstance(value, list) else [value])) else ""
    )


def _gives_both(call: object) -> bool:
    """Whether a call has its arguments under both of the names that they may have."""
    if not isinstance(call, dict):
        return False
    is_named = isinstance(call.get("name"), str) or isinstance(call.get("function"), str)
    return _gives_both(call.get("function")) or (is_named and {"arguments", "parameters"} <= call.keys())


def repeated_in_python(call: str) -> str:
    """Say which argument the Python call has twice; nothing if none, or if it is no call."""
    try:
        parsed = ast.parse(call.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return _twice([each.arg or "" for each in parsed.keywords]) if isinstance(parsed, ast.Call) else ""


def unpaired(call: str, marks: ValueMarks) -> str:
    """Say what is wrong with the arguments of a call whose values are texts between ``marks``; nothing if nothing is.

    Args:
        call: the text of it, or of several, without marks within values.
    """
    begins = [found.start() for found in re.finditer(marks.function, call)]
    for start, end in zip([0, *begins[1:]], [*begins[1:], len(call)], strict=True) if begins else [(0, len(call))]:
        names = [name.strip() for name in re.findall(marks.name, call[start:end])]
        values, ends = len(re.findall(marks.begin, call[start:end])), call.count(marks.end, start, end)
        if not len(names) == values == ends:
            return f"{len(names)} arguments are named, {values} values begin, and {ends} end with {marks.end}"
        if repeated := _twice(names):
            return repeated
    return ""


def _twice(names: list[str]) -> str:
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    return "" if twice is None else f"{twice!r} is given twice"
