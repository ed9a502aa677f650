"""Prompts of several chat messages: which ones are accepted, and what an environment makes of them.

What always holds for a prompt that is accepted: it is not empty, each message has a role and a text, a system message comes
first or not at all, and the user has the last word, since the model's turn is next.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec

from asyncrl.core.messages import Message, PromptRole
from asyncrl.core.text import short

ROLES: tuple[str, ...] = get_args(PromptRole)


def chat_prompt(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Make a prompt of chat messages as a file holds them, for which :func:`why_no_chat` is empty."""
    return tuple(Message(message["role"], message["content"]) for message in messages)


def why_no_chat(messages: Sequence[object]) -> str:
    """Say why ``messages`` are not the prompt of a task; empty if they are. Reads well after the name of a row."""
    if not messages:
        return "has an empty list as prompt; give at least one message, of the user"
    for number, message in enumerate(messages, start=1):
        if problem := _problem(message, is_first=number == 1):
            return f"has a prompt whose message {number} {problem}"
    last = _plain(messages[-1])
    if last["role"] == "user" and not last["content"].strip():
        return f"has a prompt whose last message is empty, {last['content']!r}; ask the model something"
    if last["role"] != "user":
        return f"has a prompt that ends with a message of role {last['role']!r}; end it with one of the user: the model is next"
    return ""


def _problem(message: object, *, is_first: bool) -> str:
    """Say what is wrong with one message; empty if nothing is."""
    plain = _plain(message)
    if plain is None:
        return f"is {short(message)}; write it as {{role: user, content: TEXT}}"
    for key in ("role", "content"):
        if key not in plain:
            return f"has no {key!r}, only {', '.join(map(repr, plain)) or 'nothing'}; write it as {{role: user, content: TEXT}}"
        if plain[key] is None:
            return f"has null as {key!r}; write it as {{role: user, content: TEXT}}"
    role, content = plain["role"], plain["content"]
    if role not in ROLES:
        return f"has role {short(role)}; a prompt's roles are {', '.join(ROLES)}"
    if role == "system" and not is_first:
        return "has role 'system', which only the first message may have; put its text there"
    if not isinstance(content, str):
        return f"has content {short(content)}; give one text, and no parts or images"
    # Tables fill keys that only some messages have with nulls.
    if other := sorted(key for key, value in plain.items() if key not in ("role", "content") and value is not None):
        return f"has {other[0]!r}, which would not reach the model; write it into content, or take it out"
    return ""


def _plain(message: object) -> Any:
    """Return the keys and values of a message; None if it is not a message."""
    if isinstance(message, Message):
        return msgspec.structs.asdict(message)
    return message if isinstance(message, Mapping) else None


def opening(system_prompt: str, prompt: str | tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages that an episode begins with: the environment's system prompt, if there is one, and the task's prompt.

    If the task's prompt has a system message too, the two texts are one message, the environment's first: chat templates take
    no second one.
    """
    messages = (Message("user", prompt),) if isinstance(prompt, str) else prompt
    if not system_prompt:
        return messages
    if messages[0].role == "system":
        return (Message("system", f"{system_prompt}\n\n{messages[0].content}"), *messages[1:])
    return (Message("system", system_prompt), *messages)
