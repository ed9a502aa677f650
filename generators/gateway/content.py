"""Says what of a request's messages the policy, which reads text alone, could not read, and puts the rest where vLLM reads it.

What always holds: each part of a message is text, or what the policy thought, called or was answered. All else is refused by its
type: vLLM's conversions and chat templates would leave it out without a word.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from asyncrl.generators.gateway.messages import TEXTS, text_of
from asyncrl.generators.gateway.protocol import Protocol

_THOUGHTS = {"thinking", "redacted_thinking", "reasoning", "reasoning_text", "summary_text"}
_KNOWN = {*TEXTS, *_THOUGHTS, "tool_use", "tool_result"}
_RESULTS = {"tool_result": "content", "function_call_output": "output", "custom_tool_call_output": "output"}
"""Types of what tools have answered, and the key of the answer."""
_KEYS = {
    "audio": "the policy reads text alone",
    "function_call": "write it as tool_calls",
    "refusal": "write it as content",
}
"""Keys of a message beside its content that say something, and what to do."""
_REFERENCE = "tool_reference"
"""The type of a result's part that names a tool which can be called from now on; all tools of a request can be called anyway."""


def with_quotes_as_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message of the Messages protocol in which documents and results of searches that hold text alone are text."""
    content = message.get("content")
    return {**message, "content": [_as_text(part) for part in content]} if isinstance(content, list) else message


def _as_text(part: Any) -> Any:
    if _is(part, "tool_result") and isinstance(part.get("content"), list):
        return {**part, "content": [_as_text(each) for each in part["content"]]}
    quoted = _quoted(part)
    if not isinstance(quoted, str) and not (isinstance(quoted, list) and all(_is(each, "text") for each in quoted)):
        return part
    about = [part.get(key) for key in ("title", "source", "context")]
    return {"type": "text", "text": "\n".join([*(each for each in about if each and isinstance(each, str)), text_of(quoted)])}


def _quoted(part: Any) -> object:
    """Return what a result of a search, or a document that is sent with its request, says; None if a part is neither."""
    if _is(part, "search_result"):
        return part.get("content")
    source: Any = part.get("source") if _is(part, "document") else None
    if _is(source, "text"):
        return source["data"]
    return source["content"] if _is(source, "content") else None


def unread(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of a message the policy could not read, and what to do."""
    for key, remedy in _KEYS.items():
        if message.get(key):
            yield f"{key} of a message is not supported: {remedy}"
    if message.get("type") == "item_reference" or [key for key, value in message.items() if value is not None] == ["id"]:
        yield "an item_reference is not supported: nothing is kept for it; send the item itself"
    for call in message.get("tool_calls") or ():
        if "function" not in call:
            yield f"a call of type {call.get('type')} is not supported: the policy calls functions"
    yield from unread_parts(message.get("content"))
    if message.get("type") in _RESULTS:
        yield from _unread_result(message)


def unread_system(content: object, parameter: str) -> Iterator[str]:
    """Yield which parts of a system message, which is a parameter of its own, are no text, and what to do."""
    for part in content if isinstance(content, list) else ():
        if any(_is(part, kind) for kind in _KNOWN.difference(TEXTS)) or _as_text(part) is not part:
            yield f"content of type {part['type']} in {parameter} is not supported, which holds text alone; put it into a message"
    yield from unread_parts(content)


def unread_parts(content: object) -> Iterator[str]:
    """Yield which parts of a content are no text, also within the results of tools."""
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, Mapping):
            continue  # a text, or what vLLM refuses
        kind = part.get("type")
        if kind is None:
            yield f"content without a type ({', '.join(map(str, part))}) is not supported: the policy reads text alone"
        elif kind not in _KNOWN:
            yield f"content of type {kind} is not supported: the policy reads text alone"
        elif kind in _RESULTS:
            yield from _unread_result(part)


def _unread_result(result: Mapping[str, Any]) -> Iterator[str]:
    found = result.get(_RESULTS[result["type"]])
    yield from unread_parts([part for part in found if not _is(part, _REFERENCE)] if isinstance(found, list) else found)


def as_read(message: Mapping[str, Any], protocol: Protocol) -> Mapping[str, Any]:
    """Return a message so that vLLM reads all of it.

    Of the parts of an assistant's message in the Responses protocol it would read the first, if that is no refusal, and of those
    of a reasoning item the first. The name of a tool within a result would become a further result.
    """
    if protocol is Protocol.RESPONSES and message.get("type") == "reasoning":
        return _with_one_thought(message)
    content = message.get("content")
    if not isinstance(content, list):
        return message
    if (
        protocol is Protocol.RESPONSES
        and message.get("role") == "assistant"
        and (len(content) > 1 or any(_is(part, "refusal") for part in content))
    ):
        return {"role": "assistant", "content": text_of(content)}
    return {**message, "content": [_with_names(part) for part in content]}


def _with_one_thought(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a reasoning item whose content, and whose summary, has one part with the texts of all."""
    found = {key: item.get(key) for key in ("content", "summary")}
    several = {key: parts for key, parts in found.items() if isinstance(parts, list) and len(parts) > 1}
    return {
        **item,
        **{key: [{**parts[0], "text": "\n".join(part["text"] for part in parts)}] for key, parts in several.items()},
    }


def _with_names(part: Any) -> Any:
    """Return a part in which the names of tools are texts, if it is a tool's result."""
    if not _is(part, "tool_result") or not isinstance(part.get("content"), list):
        return part
    named = [{"type": "text", "text": str(each.get("tool_name"))} if _is(each, _REFERENCE) else each for each in part["content"]]
    return {**part, "content": named}


def _is(part: Any, kind: str) -> bool:
    return isinstance(part, Mapping) and part.get("type") == kind
