"""What an environment of another project hears of the policy's turns."""

import asyncio

import aiohttp
import pytest

from asyncrl.core.messages import ToolCall
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


async def test_of_requests_made_at_once_none_waits_for_a_turn_after_the_end():
    line = Line("http://127.0.0.1:1/v1")
    body = {"model": "policy", "messages": [{"role": "user", "content": "2+2?"}]}
    asked = [asyncio.create_task(line.ask(body)) for _ in range(2)]
    await line.request()
    line.end()
    await asyncio.wait(asked, timeout=30)
    assert all(each.cancelled() for each in asked)
