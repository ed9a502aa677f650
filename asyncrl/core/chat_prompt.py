"""Prompts of several chat messages: which ones are accepted, and what an environment makes of them.

Messages come as chat templates take them (``role``, ``content``, ``tool_calls``), in the form with ``from`` and ``value``, or as
before there were several calls in a turn (``function_call``, and the role ``function`` for its answer).
What always holds for a prompt that is accepted: it is not empty, each message has a role and a text, a system message comes
first or not at all, a tool's answer follows the turn that called, and the last word is the user's or a tool's, since the model's
turn is next.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

import msgspec

from asyncrl.core.messages import Message, PromptRole, ToolCall
from asyncrl.core.text import short

ROLES: tuple[str, ...] = get_args(PromptRole)
_OLDER_ROLES = {"human": "user", "gpt": "assistant", "observation": "tool", "function_response": "tool"}
"""What the form with ``from`` and ``value`` calls roles that have other names elsewhere."""
_CALL = "function_call"
"""The key, or in the form with ``from`` and ``value`` the role, of a turn that calls; the value is then the JSON of the calls."""
_KNOWN = ("role", "content", "from", "value", "tool_calls", "tool_call_id", "name", "weight")
"""Keys that a message may have. ``weight`` says whether another trainer learns from it; a prompt is never trained."""


class _Misfit(ValueError):
    """What is wrong with a message; reads well after its number."""


def chat_prompt(messages: Sequence[object]) -> tuple[Message, ...]:
    """Make a prompt of chat messages as a file holds them, for which :func:`why_no_chat` is empty."""
    return tuple(map(read_message, messages))


def why_no_chat(messages: Sequence[object]) -> str:
    """Say why ``messages`` are not the prompt of a task; empty if they are. Reads well after the name of a row."""
    if not messages:
        return "has an empty list as prompt; give at least one message, of the user"
    before: list[Message] = []
    for number, message in enumerate(messages, start=1):
        try:
            read = read_message(message)
            _check_place(read, before)
        except _Misfit as misfit:
            return f"has a prompt whose message {number} {misfit}"
        before.append(read)
    last = before[-1]
    if last.role == "user" and not last.content.strip():
        return f"has a prompt whose last message is empty, {last.content!r}; ask the model something"
    if last.role not in ("user", "tool"):
        return f"has a prompt that ends with a message of role {last.role!r}; end it with one of the user: the model is next"
    return ""


def closing_turn(messages: Sequence[object]) -> tuple[Sequence[object], Message | None]:
    """Part a conversation before its last message, if that is the assistant's; None if it is not, or is no message at all."""
    try:
        last = read_message(messages[-1]) if messages else None
    except _Misfit:
        return messages, None
    return (messages[:-1], last) if last is not None and last.role == "assistant" else (messages, None)


def read_message(message: object) -> Message:
    """Read one message.

    Raises:
        ValueError: it is none that a conversation may have; the text reads well after its number.
    """
    if isinstance(message, Message):
        plain: dict[str, Any] = msgspec.to_builtins(message)
    elif isinstance(message, Mapping):
        # Tables fill keys that only some messages have with nulls, and lists that are empty say nothing either.
        plain = {key: value for key, value in message.items() if value is not None and (value != [] or key == "content")}
    else:
        raise _Misfit(f"is {short(message)}; write it as {{role: user, content: TEXT}}")
    older = "from" in plain and "value" in plain and "role" not in plain
    role, content = (plain["from"], plain["value"]) if older else (plain.get("role"), plain.get("content"))
    role = _OLDER_ROLES.get(role, role) if older and isinstance(role, str) else role
    if older and role == _CALL:
        role, content, plain = "assistant", "", {**plain, "tool_calls": _several_calls(content)}
    elif role == "function":
        role = "tool"
    elif _CALL in plain and "tool_calls" not in plain:
        plain = {"tool_calls": [plain.pop(_CALL)], **plain}
    calls = _calls(plain.get("tool_calls", ()))
    if content is None and calls:
        content = ""
    for key, value in (("role", role), ("content", content)):
        if value is None:
            had = "null as" if isinstance(message, Mapping) and key in message else "no"
            only = "" if had == "null as" else f", only {', '.join(map(repr, plain)) or 'nothing'}"
            raise _Misfit(f"has {had} {key!r}{only}; write it as {{role: user, content: TEXT}}")
    if role not in ROLES:
        raise _Misfit(f"has role {short(role)}; known are {', '.join(ROLES)}")
    if other := sorted(key for key in plain if key not in _KNOWN):
        raise _Misfit(f"has {other[0]!r}, which would not reach the model; write it into content, or take it out")
    if calls and role != "assistant":
        raise _Misfit(f"has 'tool_calls' and role {role!r}; only the assistant calls tools")
    if "name" in plain and role != "tool":
        raise _Misfit("has 'name', which would not reach the model; write it into content, or take it out")
    called, name = plain.get("tool_call_id", plain.get("call_id", "")), plain.get("name", "")
    if not isinstance(called, str) or not isinstance(name, str):
        raise _Misfit(f"has tool_call_id {short(called)} and name {short(name)}; give texts")
    return Message(cast(PromptRole, role), _text(content), calls, called, name)


def _check_place(message: Message, before: Sequence[Message]) -> None:
    """Refuse a message that cannot follow those before it."""
    if message.role == "system" and before:
        raise _Misfit("has role 'system', which only the first message may have; put its text there")
    if message.role == "tool" and (not before or before[-1].role not in ("tool", "assistant")):
        raise _Misfit("has role 'tool', and follows no turn of the assistant; a tool answers the assistant's call")


def _text(content: object) -> str:
    """Return the text of a message's content: a text, or parts that are texts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) else [None]
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type", "text") == "text" else None for part in parts]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise _Misfit(f"has content {short(content)}; give one text, or parts of text, and no images")
    return "".join(text for text in texts if isinstance(text, str))


def _several_calls(text: object) -> object:
    """Return the calls of a text that is the JSON of one, or of several."""
    try:
        calls = msgspec.json.decode(text) if isinstance(text, str) else text
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        remedy = "write it as {name: NAME, arguments: {...}}"
        raise _Misfit(f"has role {_CALL!r} and the call {short(text)}, which is no JSON ({error}); {remedy}") from error
    return calls if isinstance(calls, list) else [calls]


def _calls(calls: object) -> tuple[ToolCall, ...]:
    """Read the calls of a turn, each with or without ``function`` around name and arguments; these are an object or its JSON."""
    if not isinstance(calls, list | tuple):
        raise _Misfit(f"has tool_calls {short(calls)}; give a list of calls")
    return tuple(map(_call, calls))


def _call(call: object) -> ToolCall:
    if isinstance(call, Mapping):
        function = call.get("function") or call
        if isinstance(function, Mapping) and isinstance(function.get("name"), str) and function["name"]:
            arguments = function.get("arguments")
            arguments = {} if arguments is None else arguments
            if isinstance(arguments, str):
                try:
                    arguments = msgspec.json.decode(arguments) if arguments.strip() else {}
                except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
                    raise _Misfit(f"has a call with arguments {short(arguments)}, which are no JSON ({error})") from error
            if isinstance(arguments, Mapping) and all(isinstance(key, str) for key in arguments):
                called = call.get("id") or ""
                if isinstance(called, str):
                    return ToolCall(function["name"], dict(arguments), called)
    raise _Misfit(f"has the call {short(call)}; write it as {{function: {{name: NAME, arguments: {{...}}}}}}")


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
