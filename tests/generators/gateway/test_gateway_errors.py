"""What the libraries of OpenAI and Anthropic raise, path by path of theirs; no error costs an episode a token."""

import asyncio
from datetime import UTC
from typing import Any
from urllib.parse import urlsplit

import anthropic
import msgspec
import openai
import pytest
from openai import AsyncOpenAI
from played import ANTHROPIC_TOOLS, LIMITS, OPENAI_TOOLS, Clients, clients, until

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.trajectory import StopReason
from asyncrl.generators.gateway.episode import GatewayLimits

USER = {"role": "user", "content": "begin"}


def yes(row: str) -> str:
    return "Yes."


async def by_openai(play: Clients, **asked: Any) -> Any:
    return await play.openai.chat.completions.create(**{"model": "main", "messages": [USER], **asked})


async def by_anthropic(play: Clients, **asked: Any) -> Any:
    return await play.anthropic.messages.create(**{"model": "main", "messages": [USER], "max_tokens": 99, **asked})


async def by_responses(play: Clients, **asked: Any) -> Any:
    tools = [{"type": "function", **tool["function"]} for tool in asked.pop("tools", ())]
    settings = {"model": "main", "input": asked.pop("messages", [USER]), **asked, **({"tools": tools} if tools else {})}
    return await play.openai.responses.create(**settings)


ALL = pytest.mark.parametrize(
    ("ask", "library"),
    [(by_openai, openai), (by_responses, openai), (by_anthropic, anthropic)],
    ids=["chat", "responses", "anthropic"],
)


def limits(**changed: Any) -> GatewayLimits:
    most = changed.pop("max_trajectories", 16)
    return GatewayLimits(msgspec.structs.replace(LIMITS, **changed), most)


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"n": 2}, "n is not supported: each request has one turn"),
        ({"frequency_penalty": 0.5}, "frequency_penalty is not supported: it changes what is sampled"),
        ({"presence_penalty": 0.5}, "presence_penalty is not supported"),
        ({"logit_bias": {"5": 3}}, "logit_bias is not supported"),
        ({"logprobs": True, "top_logprobs": 3}, "only sampled tokens have log-probabilities"),
        ({"extra_body": {"repetition_penalty": 1.2}}, "repetition_penalty"),
        ({"extra_body": {"echo": True}}, "echo is not supported: a turn is what the policy samples, whole"),
        ({"extra_body": {"continue_final_message": True, "add_generation_prompt": False}}, "whole"),
        ({"messages": [USER, {"role": "assistant", "content": "Y"}]}, "ends with a message of the assistant"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "content of type image_url is not supported: the policy reads text alone",
        ),
        ({"messages": "begin"}, "messages"),
        ({"messages": []}, "Provide at least one message"),
        ({"messages": [{"content": "no role"}]}, "role"),
        ({"tools": [{"type": "function"}]}, "function"),
        ({"max_tokens": "many"}, "max_tokens"),
        (
            {"max_tokens": 0},
            "a turn needs at least one token, and the request allows 0; raise max_completion_tokens, or leave it out",
        ),
        ({"max_tokens": -2}, "a turn needs at least one token, and the request allows -2"),
        ({"stop": 5}, "stop"),
        (
            {"functions": [OPENAI_TOOLS[0]["function"]]},
            "functions is not supported: the policy would not see them; write them as",
        ),
        ({"extra_body": {"documents": [{"text": "FACT"}]}}, "documents is not supported: the policy would not see them; write"),
        ({"audio": {"voice": "alloy", "format": "wav"}}, "audio is not supported: the policy writes text alone"),
        ({"extra_body": {"chat_template": "{{ messages }}"}}, "chat_template is not supported: it is the recipe's"),
    ],
    ids=str,
)
async def test_what_openai_s_library_is_refused(protocols, asked: dict[str, Any], what: str) -> None:
    async with clients(protocols, yes) as play:
        with pytest.raises(openai.BadRequestError) as raised:
            await by_openai(play, **asked)
        assert what in raised.value.message
        assert raised.value.type == "invalid_request_error"
        await goes_on(play)


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"messages": [USER, {"role": "assistant", "content": "Y"}]}, "ends with a message of the assistant"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]},
            "content of type image is not supported",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": {}}]}],
                    }
                ]
            },
            "content of type image is not supported",
        ),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"max_tokens": -1}, "a turn needs at least one token, and the request allows -1; raise max_tokens"),
        (
            {"system": [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "FACT"}}]},
            "content of type document in system is not supported, which holds text alone; put it into a message",
        ),
        ({"system": [{"type": "image", "source": {}}]}, "content of type image is not supported"),
        (
            {"system": [{"type": "thinking", "thinking": "FACT", "signature": ""}]},
            "content of type thinking in system is not supported, which holds text alone; put it into a message",
        ),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "a tool of type web_search_20250305 is not supported: the policy calls tools with an input_schema",
        ),
        ({"tools": [{"name": "x"}]}, "tools.0.input_schema"),
    ],
    ids=str,
)
async def test_what_anthropic_s_library_is_refused(protocols, asked: dict[str, Any], what: str) -> None:
    async with clients(protocols, yes) as play:
        with pytest.raises(anthropic.BadRequestError) as raised:
            await by_anthropic(play, **asked)
        assert what in raised.value.message
        assert raised.value.body["error"]["type"] == "invalid_request_error"
        await goes_on(play)


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id is not supported: nothing is kept for it"),
        (
            {"messages": [USER, {"type": "item_reference", "id": "msg_1"}, USER]},
            "an item_reference is not supported: nothing is kept for it; send the item itself",
        ),
        ({"messages": [USER, {"type": None, "id": "msg_1"}, USER]}, "an item_reference is not supported: nothing is kept for it"),
        ({"conversation": "conv_1"}, "conversation is not supported: nothing is kept for it"),
        ({"prompt": {"id": "p"}}, "prompt is not supported"),
        ({"background": True}, "background is not supported: a turn is answered by its own request"),
        ({"top_logprobs": 3}, "only sampled tokens have log-probabilities"),
        ({"messages": [USER, {"role": "assistant", "content": "Y"}]}, "ends with a message of the assistant"),
        (
            {"messages": [USER, {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}]},
            "ends with a message of the assistant",
        ),
        ({"messages": [USER, {"type": "reasoning", "id": "r", "summary": []}]}, "ends with a message of the assistant"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_image", "image_url": "x", "detail": "low"}]}]},
            "content of type input_image is not supported: the policy reads text alone",
        ),
        (
            {"messages": [USER, {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}]},
            "content of type input_image is not supported",
        ),
        ({"messages": [{"role": "robot", "content": "x"}]}, "input"),
        ({"messages": 5}, "input"),
        ({"max_output_tokens": "many"}, "max_output_tokens"),
        ({"max_output_tokens": 0}, "a turn needs at least one token"),
    ],
    ids=str,
)
async def test_what_the_responses_protocol_is_refused(protocols, asked: dict[str, Any], what: str) -> None:
    async with clients(protocols, yes) as play:
        with pytest.raises(openai.BadRequestError) as raised:
            await by_responses(play, **asked)
        assert what in raised.value.message
        assert raised.value.type == "invalid_request_error"
        await goes_on(play)


async def goes_on(play: Clients) -> None:
    """The episode is not over, and has nothing of the requests before."""
    await by_openai(play)
    (trajectory,) = play.trajectories()
    assert len(trajectory.turns) == 1
    assert len(play.engine.prompts) == 1


@ALL
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_too_long_a_prompt_is_told_in_the_words_by_which_agents_compact(protocols, ask, library, stream: bool) -> None:
    async with clients(protocols, yes, limits(max_context=300)) as play:
        with pytest.raises(library.BadRequestError) as raised:
            await ask(play, messages=[{"role": "user", "content": "x" * 400}], stream=stream)
        if library is openai:
            assert raised.value.code == "context_length_exceeded"
            assert "maximum context length is 300 tokens" in raised.value.message
        else:
            assert "prompt is too long: 4" in raised.value.message
            assert "tokens > 300 maximum" in raised.value.message
        await goes_on(play)


@ALL
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"max_turns": 1}, StopReason.MAX_TURNS),
        ({"max_sampled_tokens": 5}, StopReason.SAMPLED_TOKENS),
        ({"max_trajectories": 1}, StopReason.MAX_TRAJECTORIES),
    ],
    ids=str,
)
async def test_a_limit_ends_the_episode_and_its_requests_are_told(protocols, ask, library, changed, reason) -> None:
    async with clients(protocols, yes, limits(**changed)) as play:
        await ask(play)
        for _ in range(2):
            with pytest.raises(library.APIStatusError) as raised:
                await ask(play, messages=[{"role": "user", "content": "another"}])
            assert raised.value.status_code == 410
            assert f"the episode is over: {reason}" in raised.value.message
        assert play.played.episode.over.result() is reason
        assert len(play.trajectories()) == 1


@pytest.mark.parametrize(
    ("changed", "answered", "turns", "tokens"),
    [({"max_turns": 3}, 3, 3, 15), ({"max_sampled_tokens": 12}, 3, 3, 12), ({"max_sampled_tokens": 400}, 8, 8, 40)],
    ids=["turns", "tokens", "room for all"],
)
async def test_requests_at_once_keep_to_a_limit(protocols, changed, answered: int, turns: int, tokens: int) -> None:
    async with clients(protocols, yes, limits(**changed)) as play:
        asked = [by_openai(play, messages=[{"role": "user", "content": str(number)}]) for number in range(8)]
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(not isinstance(each, BaseException) for each in done) == answered
        assert {each.status_code for each in done if isinstance(each, openai.APIStatusError)} <= {410}
        sampled = play.trajectories()
    assert (sum(len(each.turns) for each in sampled), sum(int(each.loss_mask.sum()) for each in sampled)) == (turns, tokens)


@ALL
async def test_requests_of_an_episode_that_ended_and_of_none(protocols, ask, library) -> None:
    async with clients(protocols, yes) as play:
        play.engine.gate.clear()
        running = asyncio.create_task(ask(play))
        await until(lambda: play.engine.running == 1)
        await play.played.attempts.end()
        with pytest.raises(library.APIStatusError) as raised:
            await running
        assert raised.value.status_code == 410
        assert play.engine.running == 0
        play.openai.base_url = play.anthropic.base_url = f"{play.played.anthropic_url[:-5]}/v1"
        play.anthropic.base_url = play.played.anthropic_url[:-5]
        with pytest.raises(library.APIStatusError) as raised:
            await ask(play)
        assert raised.value.status_code == 410


async def test_what_has_no_episode_is_refused_before_it_is_read(protocols) -> None:
    async with clients(protocols, yes) as play, asyncio.timeout(30):
        address = urlsplit(play.played.anthropic_url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        head = "POST /e/of-none/v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-length: 200000000\r\n\r\n"
        writer.write(head.encode())
        assert (await reader.readline()).split()[1] == b"410"
        writer.close()


@ALL
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_dead_engine(protocols, ask, library, stream: bool) -> None:
    async with clients(protocols, yes, retries=2) as play:
        play.engine.dead = True
        with pytest.raises(library.InternalServerError) as raised:
            await ask(play, stream=stream)
        assert raised.value.status_code == 503
        assert len(play.engine.prompts) == 1
        with pytest.raises(ComponentFailed):
            play.played.episode.over.result()


async def read_openai(play: Clients) -> None:
    async for _ in await by_openai(play, stream=True):
        pass


async def read_anthropic(play: Clients) -> None:
    async for _ in await by_anthropic(play, stream=True):
        pass


async def read_responses(play: Clients) -> None:
    async for event in await by_responses(play, stream=True):
        assert event.type != "error", event


@pytest.mark.parametrize(
    ("read", "library"),
    [(read_openai, openai), (read_responses, openai), (read_anthropic, anthropic)],
    ids=["chat", "responses", "anthropic"],
)
async def test_an_engine_that_dies_after_a_stream_has_begun(protocols, read, library) -> None:
    async with clients(protocols, yes, keep_alive_s=0.02) as play:
        play.engine.gate.clear()
        reading = asyncio.create_task(read(play))
        await until(lambda: play.engine.running == 1)
        await asyncio.sleep(0.1)  # until the stream has begun
        play.engine.dead = True
        play.engine.gate.set()
        with pytest.raises(library.APIError, match="the engine died"):
            await reading


@ALL
async def test_a_path_that_there_is_not(protocols, ask, library) -> None:
    async with clients(protocols, yes) as play:
        await ask(play)
        unknown = (
            play.openai.embeddings.create(model="main", input="x")
            if library is openai
            else play.anthropic.messages.batches.retrieve("m")
        )
        with pytest.raises(library.NotFoundError) as raised:
            await unknown
        assert "the gateway has no" in raised.value.message


@pytest.mark.parametrize(
    ("content", "encoding", "problem"),
    [
        (b"[1", "identity", "no JSON object"),
        (b'{"model": "\xe9"}', "identity", "no JSON object: .* send one in UTF-8"),
        (b"{}", "gzip", "not encoded as its headers say; send it without content-encoding"),
    ],
)
async def test_a_body_that_is_no_json(protocols, content: bytes, encoding: str, problem: str) -> None:
    async with clients(protocols, yes) as play:
        client: AsyncOpenAI = play.openai
        options: Any = {"headers": {"Content-Encoding": encoding}}
        with pytest.raises(openai.BadRequestError, match=problem):
            await client.post("/chat/completions", content=content, cast_to=object, options=options)


async def test_sampling_is_the_recipe_s_and_what_is_asked_in_vain_is_counted(protocols) -> None:
    async with clients(protocols, yes) as play:
        await by_openai(
            play,
            temperature=0.0,
            top_p=0.5,
            seed=3,
            user="me",
            tools=OPENAI_TOOLS,
            tool_choice="required",
            response_format={"type": "json_object"},
            extra_body={"top_k": 3, "priority": 5, "ignore_eos": True},
        )
        await by_anthropic(
            play,
            extra_body={"temperature": 0.0},
            max_tokens=32_000,
            thinking={"type": "enabled", "budget_tokens": 31_999},
            tools=ANTHROPIC_TOOLS,
            tool_choice={"type": "any"},
            metadata={"user_id": "me"},
        )
        await by_responses(
            play, extra_body={"tools": [{"type": "web_search"}, {"type": "function", **OPENAI_TOOLS[0]["function"]}]}
        )
        await by_openai(play, extra_body={"guided_choice": ["a", "b"]})
        assert play.engine.temperatures == [1.0] * 4
        assert play.played.episode.asked_in_vain == {
            "replaced temperature": 2,
            **dict.fromkeys(("replaced top_p", "replaced top_k", "replaced seed", "replaced thinking.budget_tokens"), 1),
            **{"not enforced tool_choice": 2, "not enforced response_format": 1, "not enforced guided_choice": 1},
            **dict.fromkeys(("ignored user", "ignored priority", "ignored ignore_eos", "ignored metadata"), 1),
            "ignored tools.web_search": 1,
        }


async def test_a_format_is_one_by_its_earlier_name_as_well(protocols) -> None:
    asked = {"extra_body": {"output_format": {"type": "json_schema", "schema": {"type": "object"}}}}
    async with clients(protocols, yes) as play:
        await by_anthropic(play, **asked)
        assert play.played.episode.asked_in_vain == {"not enforced output_format": 1}
    async with clients(protocols, yes, GatewayLimits(LIMITS, constrained="refuse")) as play:
        with pytest.raises(anthropic.BadRequestError, match="output_format would constrain what is sampled"):
            await by_anthropic(play, **asked)


@pytest.mark.parametrize(
    ("ask", "asked"),
    [
        (by_openai, {"max_tokens": -1}),
        (by_openai, {"max_completion_tokens": -1, "metadata": {}, "user": ""}),
        (by_responses, {"previous_response_id": "", "include": []}),
        (by_responses, {"conversation": "", "metadata": {}}),
    ],
)
async def test_what_libraries_send_for_nothing_is_nothing(protocols, ask: Any, asked: dict[str, Any]) -> None:
    async with clients(protocols, yes) as play:
        await ask(play, **asked)
        assert not play.played.episode.asked_in_vain


async def test_what_asks_for_something_by_being_there_is_counted(protocols) -> None:
    async with clients(protocols, yes) as play:
        await by_openai(play, web_search_options={})
        assert play.played.episode.asked_in_vain == {"ignored web_search_options": 1}


async def test_a_limit_that_is_none_does_not_lift_another(protocols) -> None:
    async with clients(protocols, yes) as play:
        completion = await by_openai(play, max_tokens=2, max_completion_tokens=-1)
        assert completion.usage.completion_tokens == 2


async def test_the_model_is_described_by_any_name_as_each_library_reads_it(protocols) -> None:
    async with clients(protocols, yes) as play:
        assert (await play.openai.models.retrieve("org/main")).id == "org/main"
        found = await play.anthropic.models.retrieve("main")
        assert (found.id, found.type, found.display_name, found.created_at.tzinfo) == ("main", "model", "main", UTC)
        assert [(each.id, each.type) async for each in play.anthropic.models.list()] == [("policy", "model")]


@ALL
async def test_a_recipe_can_have_constrained_requests_refused(protocols, ask, library) -> None:
    async with clients(protocols, yes, GatewayLimits(LIMITS, constrained="refuse")) as play:
        choice: Any = "required" if library is openai else {"type": "any"}
        tools: Any = OPENAI_TOOLS if library is openai else ANTHROPIC_TOOLS
        with pytest.raises(library.BadRequestError, match="tool_choice would constrain what is sampled"):
            await ask(play, tools=tools, tool_choice=choice)
        await goes_on(play)
