"""Reads what a client was sent as the message that it will send back.

What always holds: the turn of an answer is found again by any client that sends back what it got. So the message is read from the
answer itself, from a stream of events as well, and not from what was sampled: the two may differ where a call is malformed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from asyncrl.generators.gateway.messages import ChatMessage


class Unreadable(Exception):
    """An answer holds an error in place of a turn, or a call that its protocol does not know."""


def events_of(chunks: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a stream, which comes as server-sent events."""
    for line in "".join(chunks).split("\n"):
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            event = msgspec.json.decode(data)
            if event.get("error"):
                raise Unreadable(str(event["error"].get("message")))
            yield event


def of_chat(answer: Mapping[str, Any]) -> ChatMessage:
    """Return the message of a chat completion."""
    message: ChatMessage = answer["choices"][0]["message"]
    return message


def of_chat_stream(chunks: Iterable[str]) -> ChatMessage:
    """Return the message of a chat completion that is streamed."""
    content, calls = "", dict[int, dict[str, Any]]()
    for event in events_of(chunks):
        for choice in event["choices"]:
            content += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls") or ():
                call = calls.setdefault(part["index"], {"id": None, "function": {"name": "", "arguments": ""}})
                call["id"] = part.get("id") or call["id"]
                function = part.get("function") or {}
                for name in ("name", "arguments"):
                    call["function"][name] += function.get(name) or ""
    return {"role": "assistant", "content": content, "tool_calls": [calls[index] for index in sorted(calls)]}


def of_blocks(blocks: Sequence[Mapping[str, Any]]) -> ChatMessage:
    """Return the message that blocks of Anthropic's protocol stand for."""
    texts = [block["text"] for block in blocks if block["type"] == "text" and block["text"]]
    calls = [
        {"id": block["id"], "function": {"name": block["name"], "arguments": block["input"] or {}}}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    return {"role": "assistant", "content": "\n".join(texts), "tool_calls": calls}


def of_messages(answer: Mapping[str, Any]) -> ChatMessage:
    """Return the message of an answer in Anthropic's protocol."""
    return of_blocks(answer["content"])


def of_messages_stream(chunks: Iterable[str]) -> ChatMessage:
    """Return the message of a streamed answer in Anthropic's protocol."""
    blocks = list[dict[str, Any]]()
    for event in events_of(chunks):
        match event["type"]:
            case "content_block_start":
                blocks.append({**event["content_block"], "json": ""})
            case "content_block_delta":
                delta = event["delta"]
                blocks[event["index"]]["json"] += delta.get("partial_json") or ""
                if delta["type"] == "text_delta":
                    blocks[event["index"]]["text"] += delta["text"]
    for block in blocks:
        if block["json"]:
            block["input"] = msgspec.json.decode(block["json"], type=dict[str, Any])
    return of_blocks(blocks)


def of_responses(answer: Mapping[str, Any]) -> ChatMessage:
    """Return the message that the output of a response stands for, as vLLM makes it of a conversation that has it."""
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.openai.responses.utils import construct_chat_messages_with_tool_call

    items = ResponsesRequest.model_validate({"input": answer["output"]}).input
    messages = construct_chat_messages_with_tool_call(items)
    if len(messages) != 1:
        raise Unreadable(f"the output of a response is {len(messages)} messages")
    message: ChatMessage = messages[0]
    return message


def of_generate(answer: Mapping[str, Any]) -> ChatMessage:
    """Return what the token ids of an answer stand for in place of a message."""
    return {"role": "assistant", "content": " ".join(map(str, answer["choices"][0]["token_ids"]))}


def of_generate_stream(chunks: Iterable[str]) -> ChatMessage:
    """Return what the token ids of a streamed answer stand for in place of a message."""
    ids = [token for event in events_of(chunks) for choice in event["choices"] for token in choice["token_ids"] or ()]
    return {"role": "assistant", "content": " ".join(map(str, ids))}


def of_responses_stream(chunks: Iterable[str]) -> ChatMessage:
    """Return the message of a response that is streamed; its last event holds all of it."""
    for event in events_of(chunks):
        if event["type"] in ("response.completed", "response.incomplete"):
            return of_responses(event["response"])
    raise Unreadable("the stream of a response has no end")
