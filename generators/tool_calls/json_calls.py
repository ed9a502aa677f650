"""Reads calls that are JSON values of their own: those of Llama 3, of xLAM, and of Mistral after its mark.

vLLM's parsers of these formats know one spelling each, and give back a call in any other as an answer.
"""

import json
import re
from typing import Any

import msgspec

from asyncrl.generators.tool_calls.repeated import repeated_in_json

MISTRAL = "[TOOL_CALLS]"
"""The mark that begins a call, or a list of calls, of Mistral's models."""
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w*\s*)?(?:\[ARGS\])?\s*(?=\{)")
"""What Mistral writes before the arguments: a name, perhaps an id."""
_SEPARATORS = " \t\r\n;,"
_MEANT = re.compile(r"""\{\s*["'](?:name|type|function|arguments|parameters)["']\s*:""")
"""How a text begins that is meant as a call."""
_NEXT = re.compile(rf"(?<=[;,\]\n])\s*(?={_MEANT.pattern})")
"""Where a call may begin after a broken one."""


class JsonCall(msgspec.Struct, frozen=True):
    """A call as it stands in the text: its name, and its arguments as JSON.

    The names of the fields are those of the calls that vLLM's parsers return.
    """

    name: str
    arguments: str


class Broken(msgspec.Struct, frozen=True):
    """A text in the place of a call that is no JSON, or that gives something twice, which is a call nevertheless."""

    text: str
    is_call: bool = False


def json_calls(text: str) -> tuple[str, list[JsonCall | Broken]] | None:
    """Return what is said before the first call, and the calls of a turn that ends with nothing but calls; None otherwise.

    Of several calls some may be broken. Where none can be read, or all that is broken is the list around them, it is None.
    """
    start = re.search(r"^[ \t]*[\[{]", text, re.MULTILINE)
    if start is None:
        return None
    calls, _ = _all_calls(text, start.start())
    return (text[: start.start()], calls) if any(isinstance(call, JsonCall) or call.is_call for call in calls) else None


def mistral_calls(text: str) -> tuple[str, list[JsonCall | Broken]]:
    """Return what is said before the first mark, and the calls after the marks; a mark within a call's JSON is part of it."""
    place = text.find(MISTRAL)
    said, calls = text[:place], list[JsonCall | Broken]()
    while place >= 0:
        found: list[JsonCall | Broken] = []
        if named := _NAMED.match(text, place + len(MISTRAL)):
            value, end = _value(text, named.end())
            if isinstance(value, dict):
                found = [JsonCall(named[1], text[named.end() : end])]
        else:
            found, end = _all_calls(text, place + len(MISTRAL))
        again = text.find(MISTRAL, end)
        stop = again if again >= 0 else len(text)
        calls += found if found and not text[end:stop].strip(_SEPARATORS) else [Broken(text[place:stop])]
        place = again
    return said, calls


def _all_calls(text: str, place: int) -> tuple[list[JsonCall | Broken], int]:
    """Return the calls of which ``text`` consists from ``place`` on, and where they end; none if there is anything else.

    A list that is no JSON is read call by call, so that one that is broken leaves the good ones.
    """
    calls, separators = list[JsonCall | Broken](), _SEPARATORS
    while (place := _after(separators, text, place)) < len(text) and not text.startswith(MISTRAL, place):
        value, end = _value(text, place)
        found: list[JsonCall | Broken] = [*_calls(value)]
        repeats = bool(found) and bool(repeated_in_json(text[place:end]))
        if value is not None and not (repeats and isinstance(value, list) and not calls):
            found = [Broken(text[place:end], True)] if repeats else found
        elif text[place] == "[" and not calls:
            separators, place = _SEPARATORS + "]", place + 1
            continue
        else:
            again = _NEXT.search(text, place + 1)
            end = again.start() if again else len(text)
            found = [Broken(text[place:end])] if _MEANT.match(text, place) else []
        if not found:
            return [], place
        calls, place = calls + found, end
    if "]" in separators and not any(isinstance(call, Broken) for call in calls):
        return [], place
    return calls, place


def _after(separators: str, text: str, place: int) -> int:
    while place < len(text) and text[place] in separators:
        place += 1
    return place


def _value(text: str, place: int) -> tuple[Any, int]:
    """Return the JSON value that begins at ``place``, and where it ends; None if there is none."""
    try:
        return json.JSONDecoder().raw_decode(text, place)
    except (ValueError, RecursionError):
        return None, place


def _calls(value: Any) -> list[JsonCall]:
    """Return the calls that a JSON value is; none if it is something else."""
    match value:
        case list():
            found = [_calls(each) for each in value]
            return [call for calls in found for call in calls] if all(found) else []
        case {"function": {"name": str(name), **rest}} | {"name": str(name), **rest} | {"function": str(name), **rest}:
            given = next((key for key in ("arguments", "parameters") if key in rest), None)
            return [] if given is None else [JsonCall(name, json.dumps(rest[given]))]
        case _:
            return []
