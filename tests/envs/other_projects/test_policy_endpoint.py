"""What an environment of another project hears of the policy's turns."""

import asyncio
from typing import Any

import aiohttp
import pytest

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.messages import Message, ToolCall
from asyncrl.envs import Action
from asyncrl.envs.other_projects.policy_endpoint import Endpoint, Line


@pytest.mark.parametrize(
    ("action", "content"),
    [
        (Action("four", ()), "four"),
        (Action("", (ToolCall("add", {"x": 1}),)), ""),
        (Action("", ()), " "),  # verifiers takes an empty answer for a model that failed, and its rollout for broken
    ],
)
async def test_a_turn_is_answered_as_clients_take_it(action, content):
    endpoint = Endpoint()
    await endpoint.start()
    line = endpoint.open()
    try:
        async with aiohttp.ClientSession() as client, asyncio.timeout(30):
            body = {"model": "policy", "messages": [{"role": "user", "content": "2+2?"}]}
            asked = asyncio.create_task(client.post(f"{line.url}/chat/completions", json=body))
            assert [each.content for each in await line.request()] == ["2+2?"]
            line.answer(action)
            (choice,) = (await (await asked).json())["choices"]
            assert choice["message"]["content"] == content
    finally:
        endpoint.hang_up(line)
        await endpoint.close()


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
OPENING = [
    {"role": "developer", "content": [{"type": "text", "text": "Add."}]},
    {"role": "user", "content": "1+1?", "name": "Ann"},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
    {"role": "tool", "tool_call_id": "c1", "content": "2"},
    {"role": "assistant", "content": "It is 2.", "tool_calls": None},
    {"role": "user", "content": "2+2?"},
]


async def asked(line: Line, *messages: dict[str, Any], **more: Any) -> tuple[Message, ...]:
    asking = asyncio.create_task(line.ask({"messages": [*messages], **more}))
    try:
        async with asyncio.timeout(30):
            return await line.request()
    finally:
        asking.cancel()


async def test_the_calls_of_examples_reach_the_model():
    line = Line("http://127.0.0.1:1/v1", set())
    assert await asked(line, *OPENING) == (
        Message("system", "Add."),
        Message("user", "1+1?"),
        Message("assistant", "", (ToolCall("add", {"x": 1}, "c1"),)),
        Message("tool", "2", call_id="c1"),
        Message("assistant", "It is 2."),
        Message("user", "2+2?"),
    )
    turn = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "4"}
    assert await asked(line, *OPENING, turn, answer) == (Message("tool", "4"),)
    with pytest.raises(EnvironmentBroken, match=r"calls a tool in the model's name.*; play it as an agent instead"):
        await asked(line, *OPENING, turn, answer, turn, answer, turn)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "f"}}]},
            "opens with a message that has the call",
        ),
        ({"role": "robot", "content": "?"}, "opens with a message that has role 'robot'; known are"),
    ],
)
async def test_an_opening_that_would_not_reach_the_model_is_refused(message: dict[str, Any], problem: str):
    with pytest.raises(EnvironmentBroken, match=problem):
        await asked(Line("http://127.0.0.1:1/v1", set()), message)


async def test_several_turns_at_once_are_refused():
    question = {"role": "user", "content": "2+2?"}
    assert await asked(Line("http://127.0.0.1:1/v1", set()), question, n=1) == (Message("user", "2+2?"),)
    with pytest.raises(EnvironmentBroken, match=r"asks for 2 turns at once \(n\), and gets one; have it ask for one"):
        await asked(Line("http://127.0.0.1:1/v1", set()), question, n=2)


@pytest.mark.parametrize(
    ("asked_for", "problem"),
    [
        ({"logprobs": True}, r"asks for logprobs=True, which turns here do not have; have it leave logprobs out"),
        ({"top_logprobs": 2}, "asks for top_logprobs=2"),
        ({"response_format": {"type": "json_object"}}, "asks for response_format="),
        ({"tool_choice": "required"}, "asks for tool_choice='required'"),
        ({"parallel_tool_calls": False}, "asks for parallel_tool_calls=False"),
        ({"frequency_penalty": 0.5}, "asks for frequency_penalty=0.5"),
        ({"logit_bias": {"5": 1}}, "asks for logit_bias="),
    ],
)
async def test_a_turn_that_the_policy_does_not_write_is_refused(asked_for: dict[str, Any], problem: str):
    with pytest.raises(EnvironmentBroken, match=problem):
        await asked(Line("http://127.0.0.1:1/v1", set()), OPENING[0], **asked_for)


async def test_what_the_recipe_decides_and_what_does_nothing_is_named_once(caplog: pytest.LogCaptureFixture):
    ignored = set[str]()
    neutral = {"logprobs": False, "tool_choice": "auto", "stream": False, "response_format": {"type": "text"}, "seed": None}
    for _ in range(2):
        await asked(Line("http://127.0.0.1:1/v1", ignored), OPENING[0], temperature=0.7, max_tokens=5, user="ann", **neutral)
    assert sorted(caplog.messages) == [
        "the environment asks for max_tokens=5, which is the recipe's (sampling)",
        "the environment asks for temperature=0.7, which is the recipe's (sampling)",
        "the environment asks for user='ann', which does nothing here",
    ]


@pytest.mark.parametrize(
    ("stop", "action", "content"),
    [
        (None, Action("a\nb", ()), "a\nb"),
        ("\n", Action("a", ()), "a"),
        (["</a>", "", "\n"], Action("a\n", ()), "a"),
        ("\n", Action("a\nb", ()), None),
        (["</a>", "\n"], Action("a\n", (ToolCall("add", {"x": 1}),)), None),
    ],
)
async def test_a_turn_ends_at_the_stops_of_the_environment_or_is_refused(stop: object, action: Action, content: str | None):
    line = Line("http://127.0.0.1:1/v1", set())
    asking = asyncio.create_task(line.ask({"messages": OPENING[:1], "stop": stop}))
    await line.request()
    if content is None:
        with pytest.raises(
            EnvironmentBroken, match=r"end at '\\n' \(stop\), .* behind it; set sampling.stop of the recipe to \["
        ):
            line.answer(action)
        asking.cancel()
    else:
        line.answer(action)
        assert (await asking).content == content


async def test_of_requests_made_at_once_none_waits_for_a_turn_after_the_end():
    line = Line("http://127.0.0.1:1/v1", set())
    body = {"model": "policy", "messages": [{"role": "user", "content": "2+2?"}]}
    asked = [asyncio.create_task(line.ask(body)) for _ in range(2)]
    await line.request()
    line.end()
    await asyncio.wait(asked, timeout=30)
    assert all(each.cancelled() for each in asked)
