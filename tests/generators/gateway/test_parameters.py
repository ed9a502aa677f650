"""What of a request's messages reaches the policy: all of it, in the place that its template has, or the request is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from model_folders import write_tokenizer
from transformers import AutoTokenizer

from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.gateway.episode import rendered
from asyncrl.generators.gateway.messages import text_of
from asyncrl.generators.gateway.parameters import settled
from asyncrl.generators.gateway.problems import Problem
from asyncrl.generators.gateway.protocol import Protocol

USER = {"role": "user", "content": "begin"}
ALONE = "the policy reads text alone"


def settle(protocol: Protocol, *messages: Any, later: bool = True, **more: Any) -> list[Any]:
    name = "input" if protocol is Protocol.RESPONSES else "messages"
    body = {name: [*messages], **more}
    return settled(body, protocol, most_tokens=9, constrained="free", system_later=later).body[name]


def of_user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*parts]}


def result(*parts: Any) -> dict[str, Any]:
    return of_user({"type": "tool_result", "tool_use_id": "a", "content": [*parts]})


def document(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "document", "title": "t", "context": None, "source": {"type": kind, **more}}


TEXT = {"type": "text", "text": "What is this?"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
FOUND = {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "FACT"}]}


@pytest.mark.parametrize(
    ("protocol", "message", "problem"),
    [
        (
            Protocol.CHAT,
            of_user(TEXT, {"image_url": "https://x/y.png"}),
            f"content without a type (image_url) is not supported: {ALONE}",
        ),
        (Protocol.CHAT, of_user(TEXT, {"text": "And that?"}), f"content without a type (text) is not supported: {ALONE}"),
        (Protocol.CHAT, of_user({"type": "image_embeds"}), f"content of type image_embeds is not supported: {ALONE}"),
        (Protocol.CHAT, {"role": "tool", "content": [{"type": "file"}]}, f"content of type file is not supported: {ALONE}"),
        (Protocol.MESSAGES, result({**FOUND, "content": [IMAGE]}), f"content of type search_result is not supported: {ALONE}"),
        (Protocol.MESSAGES, of_user(document("content", content=[IMAGE])), f"content of type document is not supported: {ALONE}"),
        (Protocol.MESSAGES, of_user(document("base64", data="JVBERi0=")), f"content of type document is not supported: {ALONE}"),
        (Protocol.CHAT, of_user(FOUND), f"content of type search_result is not supported: {ALONE}"),
        (
            Protocol.RESPONSES,
            {"type": "function_call_output", "call_id": "c", "output": [FOUND]},
            f"content of type search_result is not supported: {ALONE}",
        ),
        (Protocol.MESSAGES, of_user({"type": "tool_reference"}), f"content of type tool_reference is not supported: {ALONE}"),
        (
            Protocol.RESPONSES,
            {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_file"}]},
            f"content of type input_file is not supported: {ALONE}",
        ),
        (
            Protocol.CHAT,
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}]},
            "a call of type custom is not supported: the policy calls functions",
        ),
        (
            Protocol.CHAT,
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            "function_call of a message is not supported: write it as tool_calls",
        ),
        (Protocol.CHAT, {"role": "assistant", "audio": {"id": "a"}}, f"audio of a message is not supported: {ALONE}"),
        (Protocol.CHAT, {"role": "assistant", "refusal": "No."}, "refusal of a message is not supported: write it as content"),
    ],
)
def test_what_would_not_reach_the_policy_is_refused_by_its_type(protocol: Protocol, message: Any, problem: str) -> None:
    with pytest.raises(Problem) as raised:
        settle(protocol, message, USER)
    assert (raised.value.text, raised.value.parameter) == (problem, "input" if protocol is Protocol.RESPONSES else "messages")


def test_a_system_message_that_is_no_text_is_refused() -> None:
    with pytest.raises(Problem, match="content of type image is not supported") as raised:
        settle(Protocol.MESSAGES, USER, system=[{"type": "image", "source": {}}])
    assert raised.value.parameter == "system"


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        (Protocol.CHAT, of_user("begin", TEXT)),
        (Protocol.CHAT, {"role": "assistant", "content": None, "refusal": None, "audio": None, "tool_calls": None}),
        (Protocol.CHAT, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, TEXT]}),
        (Protocol.MESSAGES, result(TEXT)),
        (Protocol.MESSAGES, of_user({"type": "tool_result", "tool_use_id": "a", "content": "2"}, TEXT)),
        (Protocol.MESSAGES, of_user({"type": "tool_result", "tool_use_id": "a"})),
        (Protocol.MESSAGES, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, TEXT]}),
        (Protocol.MESSAGES, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "s"}]}),
        (Protocol.MESSAGES, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}),
        (Protocol.RESPONSES, {"role": "user", "content": [{"type": "input_text", "text": "a"}]}),
        (Protocol.RESPONSES, {"role": "assistant", "content": []}),
        (Protocol.RESPONSES, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}),
        (Protocol.RESPONSES, {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "2"}]}),
        (Protocol.RESPONSES, {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}),
        (
            Protocol.RESPONSES,
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        ),
        (
            Protocol.RESPONSES,
            {
                "type": "message",
                "role": "assistant",
                "id": "m",
                "content": [{"type": "output_text", "text": "a", "annotations": []}],
            },
        ),
    ],
)
def test_what_clients_send_comes_through_as_it_is(protocol: Protocol, message: Any) -> None:
    assert settle(protocol, message, USER) == [message, USER]


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([{"type": "output_text", "text": "One."}, {"type": "output_text", "text": "Two."}], "One.\nTwo."),
        ([{"type": "refusal", "refusal": "No."}], "No."),
    ],
)
def test_of_an_assistants_several_texts_none_is_lost(parts: list[Any], text: str) -> None:
    message = {"type": "message", "role": "assistant", "content": parts}
    assert settle(Protocol.RESPONSES, message, USER) == [{"role": "assistant", "content": text}, USER]
    assert text_of(parts) == text


@pytest.mark.parametrize(("key", "kind"), [("content", "reasoning_text"), ("summary", "summary_text")])
def test_of_several_thoughts_none_is_lost(key: str, kind: str) -> None:
    item = {"type": "reasoning", "id": "r", "summary": [], key: [{"type": kind, "text": "One."}, {"type": kind, "text": "Two."}]}
    assert settle(Protocol.RESPONSES, item, USER) == [{**item, key: [{"type": kind, "text": "One.\nTwo."}]}, USER]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (FOUND, "t\ns\nFACT"),
        (document("text", media_type="text/plain", data="FACT"), "t\nFACT"),
        ({**document("text", data="FACT"), "title": None, "context": "From 1999."}, "From 1999.\nFACT"),
        (document("content", content="FACT"), "t\nFACT"),
        (document("content", content=[{"type": "text", "text": "FACT"}, {"type": "text", "text": "MORE"}]), "t\nFACT\nMORE"),
    ],
)
def test_what_is_quoted_to_the_policy_is_text(part: Any, text: str) -> None:
    said = {"type": "text", "text": text}
    assert settle(Protocol.MESSAGES, of_user(TEXT, part), result(part), USER) == [of_user(TEXT, said), result(said), USER]


def test_a_tool_that_a_result_names_is_named_in_its_text() -> None:
    (message, _) = settle(Protocol.MESSAGES, result(TEXT, {"type": "tool_reference", "tool_name": "get_weather"}), USER)
    assert message == result(TEXT, {"type": "text", "text": "get_weather"})


@pytest.mark.parametrize(
    ("protocol", "more", "role"),
    [
        (Protocol.RESPONSES, {"instructions": "A"}, "developer"),
        (Protocol.MESSAGES, {"system": "A"}, "system"),
        (Protocol.MESSAGES, {"system": [{"type": "text", "text": "A"}]}, "system"),
    ],
)
def test_a_second_system_message_becomes_the_users_where_the_template_takes_one(
    protocol: Protocol, more: dict[str, Any], role: str
) -> None:
    second = {"role": role, "content": "B"}
    assert settle(protocol, second, USER, later=False, **more) == [{**second, "role": "user"}, USER]
    assert settle(protocol, second, USER, later=True, **more) == [second, USER]
    assert settle(protocol, second, USER, later=False) == [second, USER]


def test_what_a_template_refuses_is_told_to_the_client(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.chat_template = (
        "{% if messages | selectattr('role', 'equalto', 'system') | list | length > 1 %}"
        "{{ raise_exception('one system message, please') }}{% endif %}" + tokenizer.chat_template
    )
    messages = [{"role": "system", "content": "A"}] * 2 + [USER]
    with pytest.raises(Problem, match="chat template has no place for these messages: one system message, please"):
        asyncio.run(rendered(ChatFormat(tokenizer), messages, (), {}))
