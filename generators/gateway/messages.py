"""Compares chat messages by what they say, as a client that sends a conversation back may write it otherwise than it came.

What always holds: a hash of a conversation depends on the messages up to its end and their order alone; two messages that differ
in role, text or calls are different, and nothing else of a message counts.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

ChatMessage = Mapping[str, Any]
"""A message of a chat completion, as chat templates take it, such as ``{"role": "user", "content": "Hello."}``."""

TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Types of a message's parts that are text, and the key of the text."""

_LARGEST_INTEGER = 1e21
"""Numbers from here on are written with an exponent by clients that know floating point alone."""


def text_of(content: object) -> str:
    """Return the text of a message's content: a string, a list of parts, or nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise TypeError(f"a message's content is {content!r}; it must be a text or a list of parts")
    return "\n".join(
        part if isinstance(part, str) else str(part.get(TEXTS[part["type"]]) or "") for part in content if _is_text(part)
    )


def _is_text(part: object) -> bool:
    return isinstance(part, str) or (isinstance(part, Mapping) and part.get("type") in TEXTS)


def role_of(message: ChatMessage) -> str:
    """Return the role of a message; developers have the role that chat templates know as system."""
    role = str(message["role"])
    return "system" if role == "developer" else role


def calls_of(message: ChatMessage) -> list[Mapping[str, Any]]:
    """Return the tool calls of a message of the assistant."""
    return list(message.get("tool_calls") or ())


def call_ids(message: ChatMessage) -> frozenset[str]:
    """Return the ids of the tool calls of a message."""
    return frozenset(str(call["id"]) for call in calls_of(message) if call.get("id"))


def plain_arguments(arguments: object) -> object:
    """Return the arguments of a call as an object, which clients may have as text; the text itself if it is not JSON."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments) if arguments else {}
    except (ValueError, RecursionError):
        return arguments


def for_template(message: ChatMessage) -> dict[str, Any]:
    """Return a message as chat templates take it: one text, and calls with their arguments as objects."""
    turn: dict[str, Any] = {"role": role_of(message), "content": text_of(message.get("content"))}
    if reasoning := message.get("reasoning") or message.get("reasoning_content"):
        turn["reasoning_content"] = reasoning
    if calls := calls_of(message):
        turn["tool_calls"] = [
            {
                "id": call.get("id"),
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": plain_arguments(call["function"].get("arguments")),
                },
            }
            for call in calls
        ]
    return turn | {name: message[name] for name in ("tool_call_id", "name") if message.get(name)}


def canonical(message: ChatMessage) -> bytes:
    """Return what a message says. Two messages for which it is equal stand for the same tokens.

    Of the assistant's messages, white space around the text does not count, nor how the arguments of calls are written, nor
    reasoning and the ids of calls, which not all clients send back.
    """
    role, text = role_of(message), text_of(message.get("content"))
    if role != "assistant":
        return json.dumps((role, text)).encode()
    calls = [
        (call["function"]["name"], _same_numbers(plain_arguments(call["function"].get("arguments"))))
        for call in calls_of(message)
    ]
    return json.dumps((role, text.strip(), calls), sort_keys=True).encode()


def _same_numbers(value: Any) -> Any:
    """Return JSON with numbers as a client has them that knows floating point alone: 1 for 1.0."""
    match value:
        case dict():
            return {name: _same_numbers(part) for name, part in value.items()}
        case list():
            return [_same_numbers(part) for part in value]
        case int() | float() if not isinstance(value, bool) and abs(value) < _LARGEST_INTEGER:
            number = float(value)
            return int(number) if number.is_integer() else number
        case _:
            return value


def start_of_chain(key: Sequence[object]) -> bytes:
    """Return the hash with which conversations of one ``key`` begin."""
    return _digest(json.dumps(key, sort_keys=True).encode())


def chained(before: bytes, message: ChatMessage) -> bytes:
    """Return the hash of a conversation that goes on with ``message`` after the one whose hash is ``before``."""
    return _digest(before + canonical(message))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
