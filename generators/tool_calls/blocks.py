"""Cuts a turn into what is said and single calls, before a parser reads each call by itself.

So one call that cannot be read does not spoil those beside it, and a mark within a value (``</tool_call>`` in a string, say) ends
nothing: within values, marks are written in another way while the parser reads.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import msgspec

from asyncrl.generators.tool_calls.formats import CallFormat

_SHIELD = "\ufdd3"
"""Stands for ``<`` within the values of a call. Unicode reserves it for internal use by programs."""


_NOT_BLANK = re.compile(r"\S")


class Block(msgspec.Struct, frozen=True):
    """A part of a turn.

    Attributes:
        text: the part as the model wrote it, marks included.
        readable: what a parser is given of a call; empty if the part is no call.
    """

    text: str
    readable: str = ""


def blocks(text: str, format: CallFormat) -> Iterator[Block]:
    """Yield the parts of a turn in order: what is said, and single calls."""
    safe, place = shielded(text, format), 0
    while (begin := safe.find(format.begin, place)) >= 0:
        if begin > place:
            yield Block(text[place:begin])
        body = begin + len(format.begin)
        if format.json:
            values, place = _json_values(text, body)
            after = _end_after(text, place, format)
            if values and after is not None:
                for value in values:
                    yield Block(value, f"{format.begin}\n{_without_marks(value)}\n{format.end}")
                place = after
                continue
        again = safe.find(format.begin, body)
        stop = again if again >= 0 else len(text)
        end = safe.find(format.end, body, stop)
        place = end + len(format.end) if end >= 0 else stop
        yield Block(text[begin:place], safe[begin:place])
    if place < len(text):
        yield Block(text[place:])


def unshielded(value: Any) -> Any:
    """Return the JSON ``value`` with the marks that were written in another way."""
    match value:
        case str():
            return value.replace(_SHIELD, "<")
        case dict():
            return {unshielded(key): unshielded(part) for key, part in value.items()}
        case list():
            return [unshielded(part) for part in value]
        case _:
            return value


def _json_values(text: str, place: int) -> tuple[list[str], int]:
    """Return the JSON values from ``place`` on, with blanks between them, and where they end."""
    values, decoder = [], json.JSONDecoder()
    while start := _NOT_BLANK.search(text, place):
        try:
            _, end = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            break
        values.append(text[start.start() : end])
        place = end
    return values, place


def _end_after(text: str, place: int, format: CallFormat) -> int | None:
    """Return where the call ends whose last value ends at ``place``: after its end mark, or there if the mark is missing."""
    start = _NOT_BLANK.search(text, place)
    if start is None or text.startswith(format.begin, start.start()):
        return place
    return start.start() + len(format.end) if text.startswith(format.end, start.start()) else None


def _without_marks(value: str) -> str:
    """Return the JSON text ``value`` without the character that begins marks, which JSON has within strings only."""
    return value.replace("<", r"\u003c")


def shielded(text: str, format: CallFormat) -> str:
    """Return ``text``, as long as it was, with ``<`` written in another way within the values of calls.

    A value within which another begins that does not end stays as it is: it lacks its own end.
    """
    marks = format.value
    if marks is None:
        return text
    ends = [found.start() for found in re.finditer(f"{re.escape(marks.end)}(?={marks.after})", text)]
    calls = [found.start() for found in re.finditer(re.escape(format.begin) + marks.call, text)]
    begins = [found.span() for found in re.finditer(marks.begin, text)]
    starts, closed = [begin for begin, _ in begins], [found.start() for found in re.finditer(re.escape(marks.end), text)]
    parts, place = [], 0
    for _, start in begins:
        end = _first_from(start, ends)
        if start < place or end is None or end > (_first_from(start, calls) or len(text)):
            continue
        if _between(start, end, starts) > _between(start, end, closed):
            continue
        parts += [text[place:start], text[start:end].replace("<", _SHIELD)]
        place = end
    return "".join([*parts, text[place:]])


def _first_from(place: int, places: list[int]) -> int | None:
    """Return the first of the sorted ``places`` that is not before ``place``."""
    index = bisect_left(places, place)
    return places[index] if index < len(places) else None


def _between(start: int, end: int, places: list[int]) -> int:
    """Return how many of the sorted ``places`` are from ``start`` up to ``end``."""
    return bisect_left(places, end) - bisect_left(places, start)
