"""Tries a chat template with whole conversations: does the row that grows turn by turn equal the conversation rendered at once?

Where a template only appends, it does, token for token. Where a template writes an earlier turn in another way once there are
later ones, as those do that strip earlier thoughts, the row keeps what was sampled, and the two differ; a trial says where.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from asyncrl.core.messages import Message, ToolSpec
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.chat_template import TemplateUnsuitable

_ADD = ToolSpec(
    "add",
    "Adds two numbers.",
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]},
)
_SHOWN = 60
"""The most characters that are shown of a difference, on each side."""


class Outcome(StrEnum):
    """How a row and its conversation rendered at once compare."""

    EQUAL = "equal"
    TOKENS = "other tokens"
    """The same text, cut into other tokens."""
    REWRITTEN = "rewritten"
    REFUSED = "refused"


class Trial(msgspec.Struct, frozen=True):
    """What came of one conversation.

    Attributes:
        conversation: what is in it.
        detail: where the two differ, or why the template refuses the conversation.
    """

    conversation: str
    outcome: Outcome
    detail: str = ""


def _says(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _calls(content: str, *arguments: Mapping[str, Any]) -> dict[str, Any]:
    calls = [
        {"id": f"call{number:05}", "type": "function", "function": {"name": "add", "arguments": dict(each)}}
        for number, each in enumerate(arguments)
    ]
    return _says("assistant", content, tool_calls=calls)


def _answer(content: str, number: int = 0) -> dict[str, Any]:
    return _says("tool", content, name="add", tool_call_id=f"call{number:05}")


_ASKED = _says("user", "What is 1 + 2?")
_SYSTEM = _says("system", "Be brief.")
_FINAL = _says("assistant", "It is 3.")
_AGAIN = _says("user", "And 3 + 4?")
CONVERSATIONS: Mapping[str, tuple[Sequence[Mapping[str, Any]], Sequence[ToolSpec]]] = {
    "a question and an answer": ((_ASKED, _FINAL, _AGAIN), ()),
    "a system message": ((_SYSTEM, _ASKED, _FINAL, _AGAIN), ()),
    "letters of many scripts": ((_says("user", "é 你好 😀 مرحبا"), _says("assistant", "नमस्ते ½"), _says("user", "ça va?")), ()),
    "blanks around": ((_says("user", " x \n"), _says("assistant", "a  b"), _says("user", "\n\ny ")), ()),
    "a thought": ((_ASKED, _says("assistant", "It is 3.", reasoning_content="1 and 2 are 3."), _AGAIN), ()),
    "an empty answer": ((_ASKED, _says("assistant", ""), _AGAIN), ()),
    "tools, none called": ((_ASKED, _FINAL, _AGAIN), (_ADD,)),
    "a call": ((_ASKED, _calls("", {"a": 1, "b": 2}), _answer("3")), (_ADD,)),
    "a system message and a call": ((_SYSTEM, _ASKED, _calls("", {"a": 1, "b": 2}), _answer("3")), (_ADD,)),
    "words before a call": ((_ASKED, _calls("I add them.", {"a": 1, "b": 2}), _answer("3")), (_ADD,)),
    "two calls": ((_ASKED, _calls("", {"a": 1, "b": 2}, {"a": 3, "b": 4}), _answer("3"), _answer("7", 1)), (_ADD,)),
    "answers in another order": (
        (_ASKED, _calls("", {"a": 1, "b": 2}, {"a": 3, "b": 4}), _answer("7", 1), _answer("3")),
        (_ADD,),
    ),
    "digits as text": ((_ASKED, _calls("", {"a": "0042", "b": "1e3"}), _answer("0042")), (_ADD,)),
    "a question after the answer": ((_ASKED, _calls("", {"a": 1, "b": 2}), _answer("3"), _FINAL, _AGAIN), (_ADD,)),
    "a thought before a call": (
        (_ASKED, {**_calls("", {"a": 1, "b": 2}), "reasoning_content": "I add."}, _answer("3"), _FINAL, _AGAIN),
        (_ADD,),
    ),
}
"""Conversations, by what is in them: messages as chat templates take them, and the tools that are offered."""


async def try_template(chat: ChatFormat) -> list[Trial]:
    """Try each of :data:`CONVERSATIONS`."""
    return [await _try(chat, name, messages, tools) for name, (messages, tools) in CONVERSATIONS.items()]


class _StartRewritten(Exception):
    """A turn that is part of the conversation begins in another way than one that is to be sampled."""


async def _try(chat: ChatFormat, name: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec]) -> Trial:
    try:
        row = await _grown(chat, messages, tools)
        whole = chat.encode(chat.rendered(messages, tools))
    except _StartRewritten:
        return Trial(name, Outcome.REWRITTEN, "a turn is written without the start that the template gives for sampling it")
    except TemplateUnsuitable as error:
        return Trial(name, Outcome.REFUSED, error.problem)
    except Exception as error:  # noqa: BLE001 - whatever the template's own code raises
        return Trial(name, Outcome.REFUSED, str(error) or type(error).__name__)
    if row == whole:
        return Trial(name, Outcome.EQUAL)
    ours, theirs = chat.decode(row), chat.decode(whole)
    place = next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    if ours == theirs:
        place = next(at for at, (a, b) in enumerate(zip(row, whole, strict=False)) if a != b)
        return Trial(name, Outcome.TOKENS, f"{chat.decode(row[place : place + 3])!r} in other tokens")
    detail = f"the row has {ours[place : place + _SHOWN]!r}, the conversation rendered at once {theirs[place : place + _SHOWN]!r}"
    return Trial(name, Outcome.REWRITTEN, detail)


async def _grown(chat: ChatFormat, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec]) -> list[int]:
    """Return the row of an episode whose policy samples what the template writes for its turns."""
    row: list[int] = []
    given: list[Message] = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            given.append(Message(message["role"], message["content"]))
            continue
        row += await (chat.delta(given, tools) if row else chat.prompt(given, tools))
        given = []
        turn = chat.written_turn(messages[:number], message, tools)
        if turn is None:
            raise _StartRewritten
        row += turn
    return row + await chat.delta(given, tools)
