"""Cuts what holds several calls at once into single ones: a section with marks around each call, and a list of Python calls.

vLLM's parsers read such a turn as a whole, so that a call that cannot be read would spoil those beside it.
"""

import json
import re
from collections.abc import Iterator

from asyncrl.generators.tool_calls.formats import CallFormat

_OPENING, _CLOSING, _QUOTES = "([{", ")]}", "\"'"


def calls_of_section(text: str, format: CallFormat) -> Iterator[str]:
    """Yield each call of the sections of ``text``, from its mark up to the next call's or the section's end.

    A mark within a call's JSON is part of it.
    """
    begin = format.each
    place = text.find(begin, text.find(format.begin))
    while place >= 0:
        after = _after_json(text, place + len(begin), begin)
        again, end = text.find(begin, after), text.find(format.end, after)
        yield text[place : min(each for each in (again, end, len(text)) if each >= 0)].rstrip()
        place = again


def on_one_line(call: str) -> str:
    """Return the text of a call with its JSON on one line, as some parsers need it; no text within JSON has line ends."""
    start = call.find("{")
    try:
        end = json.JSONDecoder().raw_decode(call, start)[1] if start >= 0 else 0
    except (ValueError, RecursionError):
        return call
    return call[:start] + re.sub(r"[\r\n]+", " ", call[start:end]) + call[end:] if end else call


def _after_json(section: str, place: int, begin: str) -> int:
    """Return where the JSON object ends that begins before the next call does; ``place`` if there is none that is whole."""
    start, again = section.find("{", place), section.find(begin, place)
    if start < 0 or 0 <= again < start:
        return place
    try:
        return json.JSONDecoder().raw_decode(section, start)[1]
    except (ValueError, RecursionError):
        return place


def calls_of_list(text: str) -> tuple[str, list[str], str]:
    """Return what is before a list of Python calls, its entries, and what is after it; no entries if there is no list."""
    first, last = text.find("["), text.rfind("]")
    if first < 0 or last < first or not re.match(r"\[\s*[A-Za-z_][\w.]*\s*\(", text[first:]):
        return text, [], ""
    return text[:first], list(_entries(text[first + 1 : last])), text[last + 1 :]


def _entries(listed: str) -> Iterator[str]:
    """Yield what commas separate outside brackets and texts; a call that begins after a comma ends what lacks a bracket."""
    start = depth = place = 0
    quote = ""
    while place < len(listed):
        letter = listed[place]
        if quote:
            if letter == "\\":
                place += 1
            elif letter == quote:
                quote = ""
        elif letter in _QUOTES:
            quote = letter
        elif letter in _OPENING:
            depth += 1
        elif letter in _CLOSING:
            depth = max(0, depth - 1)
        elif letter == "," and (depth == 0 or re.match(r",\s*[A-Za-z_][\w.]*\(", listed[place:])):
            yield listed[start:place].strip()
            start, depth = place + 1, 0
        place += 1
    yield listed[start:].strip()
