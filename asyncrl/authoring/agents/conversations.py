"""Says why a request did not go on in the token stream of an earlier one: which of its messages differs, and how.

What always holds: requests are compared as the gateway matches them, so what is no difference there is none here.
"""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from asyncrl.core.text import short
from asyncrl.core.trajectory import StartReason
from asyncrl.generators.gateway.matching import Asked
from asyncrl.generators.gateway.messages import ChatMessage, calls_of, canonical, plain_arguments, role_of, text_of
from asyncrl.generators.gateway.observer import Placed
from asyncrl.generators.gateway.protocol import Protocol

_AROUND = 20
"""Characters before the first difference of two texts that are shown."""


class Beginning(StrEnum):
    """Why a request began a token stream."""

    CONVERSATION = "another conversation"
    """Nothing of it was sampled before: the first one of its role, a sub-agent's, or one after compaction."""
    TOOLS = "other tools"
    """The tools, or the template's arguments, are not those of the conversation so far."""
    AGAIN = "the same words again"
    """What it says was asked before, or is asked at the same time."""
    REWRITTEN = "history rewritten"
    """It has an earlier conversation with a change in it."""


class Begun(msgspec.Struct, frozen=True):
    """A request that began a token stream.

    Attributes:
        how: which message differs, and how; empty for the first conversation of a role.
        kind: ``how`` without what is different from case to case.
    """

    role: str
    beginning: Beginning
    how: str = ""
    kind: str = ""


class Conversations:
    """The conversations of one episode, as its requests had them."""

    def __init__(self) -> None:
        self._told: list[tuple[Asked, tuple[ChatMessage, ...]]] = []

    def finished(self, placed: Placed, message: ChatMessage) -> None:
        """Remember a conversation with the turn that answered it."""
        self._told.append((placed.asked, (*placed.asked.messages, {**message, "role": "assistant"})))

    def begun(self, placed: Placed) -> Begun:
        """Say why a request, which extends no stream, begins one."""
        asked = placed.asked
        of_role = [each for each in self._told if each[0].role == asked.role]
        if placed.begins is StartReason.PARALLEL:
            return Begun(asked.role, Beginning.AGAIN)
        if not of_role:
            return Begun(asked.role, Beginning.CONVERSATION)
        if placed.protocol is Protocol.GENERATE:
            return _other_tokens(asked, [each[1] for each in of_role])
        if placed.begins is StartReason.OTHER_TOOLS:
            how, kind = _other_setting(of_role[-1][0], asked)
            return Begun(asked.role, Beginning.TOOLS, how, kind)
        alike = [each for each in of_role if _setting(each[0]) == _setting(asked)] or of_role
        nearest = max((each[1] for each in alike), key=lambda told: (_shared(told, asked.messages), len(told)))
        return _difference(asked.role, nearest, asked.messages)


def _other_tokens(asked: Asked, told: Sequence[Sequence[ChatMessage]]) -> Begun:
    """Say how a conversation of token ids, told as one text, differs from the one that is most like it."""
    (now,) = map(_text, asked.messages)
    nearest = max(told, key=lambda each: _common_length("".join(map(_text, each)), now))
    was = "".join(map(_text, nearest))
    if _common_length(was, now) <= len(_text(nearest[0])):
        return Begun(asked.role, Beginning.CONVERSATION, "", "another conversation")
    return Begun(asked.role, Beginning.REWRITTEN, f"its tokens differ: {at_difference(was, now)}", "its tokens differ")


def _text(message: ChatMessage) -> str:
    return text_of(message.get("content"))


def _setting(asked: Asked) -> bytes:
    return msgspec.json.encode((asked.tools, asked.arguments), order="deterministic")


def _shared(told: Sequence[ChatMessage], messages: Sequence[ChatMessage]) -> int:
    """Count the messages with which two conversations begin alike."""
    pairs = zip(told, messages, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if canonical(a) != canonical(b)), min(len(told), len(messages)))


def _other_setting(before: Asked, now: Asked) -> tuple[str, str]:
    """Say how tools or the template's arguments differ."""
    tools = [{str(tool["function"]["name"]): tool for tool in asked.tools} for asked in (before, now)]
    new, gone = tools[1].keys() - tools[0].keys(), tools[0].keys() - tools[1].keys()
    changed = {name for name in tools[0].keys() & tools[1].keys() if tools[0][name] != tools[1][name]}
    changes = (
        ("tools are new", new),
        ("tools are left out", gone),
        ("tools have another description", changed),
        ("arguments of the template differ", _differing(before.arguments, now.arguments)),
    )
    for kind, names in changes:
        if names:
            return f"{kind}: {', '.join(sorted(names))}", kind
    return "tools come in another order", "tools come in another order"


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    return {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


def _difference(role: str, told: Sequence[ChatMessage], messages: Sequence[ChatMessage]) -> Begun:
    """Say how a conversation differs from the one that is most like it."""
    place = _shared(told, messages)
    if place == len(messages):
        how = f"it ends with message {place}, after which the conversation had gone on"
        return Begun(role, Beginning.REWRITTEN, how, "it goes back to an earlier message")
    if place == len(told):  # all is there, and the stream has gone on otherwise, or another request goes on from it
        return Begun(role, Beginning.AGAIN)
    was, now = told[place], messages[place]
    nothing_sampled = not any(message["role"] == "assistant" for message in told[:place])
    if nothing_sampled and role_of(was) != "assistant":
        how = f"message {place + 1} ({role_of(now)}) is {short(text_of(now.get('content')))}"
        return Begun(role, Beginning.CONVERSATION, how, f"another message {place + 1} ({role_of(now)})")
    how, kind = _changed(was, now, told[place + 1 :], messages[place + 1 :])
    whose = f"the {role_of(was)}'s message"
    return Begun(role, Beginning.REWRITTEN, f"message {place + 1}, {whose}: {how}", f"{whose}: {kind}")


def _changed(
    was: ChatMessage, now: ChatMessage, after_was: Sequence[ChatMessage], after_now: Sequence[ChatMessage]
) -> tuple[str, str]:
    """Say how a message is not what it was, with examples and without."""
    if after_was and canonical(after_was[0]) == canonical(now):
        return f"it is left out ({_said(was)})", "it is left out"
    if any(canonical(was) == canonical(message) for message in after_now):
        return f"another one comes before it ({_said(now)})", "another one comes before it"
    if role_of(was) != role_of(now):
        changed = f"the {role_of(now)}'s comes in its place"
        return f"{changed} ({_said(now)})", changed
    texts = text_of(was.get("content")), text_of(now.get("content"))
    if role_of(was) == "assistant":
        calls = [_calls(was), _calls(now)]
        if calls[0] != calls[1]:
            kind = _how_calls_differ(*calls)
            return f"{kind}: {short(_written(calls[0]))} was sampled, {short(_written(calls[1]))} came back", kind
        texts = texts[0].strip(), texts[1].strip()
    kind = _how_texts_differ(*texts)
    return f"{kind}: {at_difference(*texts)}", kind


def _calls(message: ChatMessage) -> list[tuple[str, object]]:
    return [(call["function"]["name"], plain_arguments(call["function"].get("arguments"))) for call in calls_of(message)]


def _written(calls: Sequence[tuple[str, object]]) -> str:
    return ", ".join(f"{name}({json.dumps(arguments, sort_keys=True)})" for name, arguments in calls) or "no call"


def _said(message: ChatMessage) -> str:
    return short(text_of(message.get("content")) or _written(_calls(message)))


def _how_calls_differ(was: Sequence[tuple[str, object]], now: Sequence[tuple[str, object]]) -> str:
    if len(was) != len(now):
        return "it has fewer calls" if len(now) < len(was) else "it has more calls"
    if [name for name, _ in was] != [name for name, _ in now]:
        return "a call has another name"
    return "a call has other arguments"


def _how_texts_differ(was: str, now: str) -> str:
    if not now:
        return "its text is gone"
    if now.startswith(was):
        return "its text is longer"
    if was.startswith(now):
        return "its text is cut off"
    return "it has another text"


def _common_length(was: str, now: str) -> int:
    """Count the characters with which two texts begin alike."""
    return next((at for at, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))


def at_difference(was: str, now: str) -> str:
    """Show two texts from shortly before their first difference."""
    start = max(0, _common_length(was, now) - _AROUND)
    dots = "..." if start else ""
    return f"{short(dots + was[start:])} was there before, {short(dots + now[start:])} came back"
