"""Reads calls that are JSON values of their own: those of Llama 3, of xLAM, and of Mistral after its mark.

vLLM's parsers of these formats know one spelling each, and give back a call in any other as an answer.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

MISTRAL = "[TOOL_CALLS]"
"""The mark that begins a call, or a list of calls, of Mistral's models."""
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w*\s*)?(?:\[ARGS\])?\s*(?=\{)")
"""What Mistral writes before the arguments: a name, perhaps an id."""


class JsonCall(msgspec.Struct, frozen=True):
    """A call as it stands in the text: its name, and its arguments as JSON.

    The names of the fields are those of the calls that vLLM's parsers return.
    """

    name: str
    arguments: str


def json_calls(text: str) -> tuple[str, list[JsonCall]] | None:
    """Return what is said before the first call, and the calls of a turn that ends with nothing but calls; None otherwise."""
    start = re.search(r"^[ \t]*[\[{]", text, re.MULTILINE)
    if start is None:
        return None
    calls: list[JsonCall] = []
    for value in _values(text[start.start() :]):
        found = _calls(value)
        if not found:
            return None
        calls += found
    return (text[: start.start()], calls) if calls else None


def mistral_calls(text: str) -> tuple[str, list[JsonCall | str]]:
    """Return what is said before the first mark, and the calls after the marks; the text itself where it cannot be read."""
    said, *parts = text.split(MISTRAL)
    calls: list[JsonCall | str] = []
    for part in parts:
        named = _NAMED.match(part)
        values = list(_values(part[named.end() :] if named else part))
        if named:
            found = [JsonCall(named[1], json.dumps(values[0]))] if len(values) == 1 and isinstance(values[0], dict) else []
        else:
            found = _calls(values)
        calls += found or [MISTRAL + part]
    return said, calls


def _values(text: str) -> Iterator[Any]:
    """Yield the JSON values of which ``text`` consists, with blanks, semicolons or commas between them; None for what is none."""
    place, decoder = 0, json.JSONDecoder()
    while place < len(text):
        if text[place] in " \t\r\n;,":
            place += 1
            continue
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            yield None
            return
        yield value


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
