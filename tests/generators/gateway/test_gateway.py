"""The libraries of OpenAI and Anthropic play episodes through the gateway, and each token stays as it was sampled."""

import asyncio
import json
from functools import partial

import msgspec
import pytest
from aiohttp import web
from anthropic import BadRequestError
from chat_tokenizers import CHAT_ML
from client_calls import WAYS as ALL_WAYS
from client_calls import Ask, anthropic, anthropic_stream, chat, chat_stream, responses, responses_stream, user
from played import CALL, LIMITS, OPENAI_TOOLS, clients, until

from asyncrl.core.trajectory import StartReason
from asyncrl.generators.gateway.episode import GatewayLimits

BOTH = [chat, chat_stream, anthropic, anthropic_stream]
WAYS = pytest.mark.parametrize("ask", ALL_WAYS, ids=lambda each: each.__name__)
STOPPING = pytest.mark.parametrize("ask", BOTH, ids=lambda each: each.__name__)


def adds_once(row: str) -> str:
    return "It is 2." if "<tool_response>" in row else f"Let me add.\n{CALL}"


@WAYS
async def test_a_conversation_is_one_stream_with_the_tokens_of_our_own_environments(protocols, ask: Ask) -> None:
    async with clients(protocols, adds_once) as play:
        messages = [user("1+1?")]
        first, last = await ask(play, messages), await ask(play, messages)
        (trajectory,) = play.trajectories()
        assert (trajectory.role, trajectory.why, len(trajectory.turns)) == ("main", StartReason.FIRST, 2)
        assert play.row() == (
            f"<|im_start|>system\n{json.dumps(OPENAI_TOOLS[0])}\n<|im_end|>\n<|im_start|>system\nBe brief.<|im_end|>\n"
            f"<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\nLet me add.\n{CALL}<|im_end|>\n"
            "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\nIt is 2.<|im_end|>"
        )
        assert play.engine.prompts[1] == trajectory.token_ids[: trajectory.turns[1].start].tolist()
        ends = [getattr(got, "finish_reason", None) or getattr(got, "stop_reason", None) for got in (first, last)]
        assert tuple(ends) in {("tool_calls", "stop"), ("tool_use", "end_turn"), (None, None)}


@WAYS
@pytest.mark.parametrize(
    "said",
    [
        "",
        "  spaces \n\n",
        "<tool_call>\n{not json}\n</tool_call>",
        f"{CALL}{CALL}",
        f"<tool_call>{CALL}",
        f"{CALL} and then",
        "Hm: <|im_start|>? é 漢 \U0001f600",
        '<tool_call>\n{"name": "add", "arguments": {"b": 1.0, "a": [1e3, "x", null]}}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": "{}"}\n</tool_call>',
        '<tool_call>\n{"name": "unknown"}\n</tool_call>',
        '<tool_call>\n{"name": 3, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": {"a": ',
    ],
)
async def test_whatever_the_policy_says_the_client_can_go_on_in_its_stream(protocols, ask: Ask, said: str) -> None:
    async with clients(protocols, lambda row: "Done." if "go on" in row else said) as play:
        messages = [user("1+1?")]
        await ask(play, messages)
        messages.append(user("go on"))
        await ask(play, messages)
        assert f"<|im_start|>assistant\n{said}<|im_end|>" in play.row()
        assert [len(each.turns) for each in play.trajectories()] == [2]


async def test_a_response_without_a_word_is_a_message_in_its_events(protocols) -> None:
    async with clients(protocols, lambda row: "") as play:
        stream = await play.openai.responses.create(model="main", input="begin", stream=True)
        events = [event async for event in stream]
        whole = await play.openai.responses.create(model="main", input="begin")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    (done,) = [event.item for event in events if event.type == "response.output_item.done"]
    completed = events[-1]
    assert completed.type == "response.completed"
    assert completed.response.output == [done]
    for item in (done, *whole.output):
        assert item.model_dump(include={"type", "role", "status"}) == {
            "type": "message",
            "role": "assistant",
            "status": "completed",
        }
        assert [part.text for part in item.content] == [""]


@WAYS
async def test_requests_at_once_and_branches_are_streams_of_their_own(protocols, ask: Ask) -> None:
    async with clients(protocols, lambda row: "Right." if "<|im_start|>assistant" in row[:-25] else "Well.") as play:
        trunk = [user("begin")]
        await ask(play, trunk)
        forks = [[*trunk, user(name)] for name in ("one", "two")]
        play.engine.gate.clear()
        asking = [asyncio.create_task(ask(play, fork)) for fork in forks]
        await until(lambda: play.engine.running == 2)
        play.engine.gate.set()
        await asyncio.gather(*asking)
        first, second = play.trajectories()
        assert (second.parent, second.why, second.shared) == (0, StartReason.PARALLEL, first.turns[0].end)
        assert second.token_ids[: second.shared].tolist() == first.token_ids[: second.shared].tolist()
        assert sorted(name for name in ("one", "two") for part in (0, 1) if f"user\n{name}" in play.row(part)) == ["one", "two"]


async def test_a_sub_agent_and_compaction(protocols) -> None:
    async with clients(protocols, lambda row: "Yes.") as play:
        messages, part = [user("begin")], [user("a part")]
        await chat(play, messages)
        await chat(play, part, model="sub")
        await chat(play, [user("another part")], model="sub")
        await chat(play, [user("a summary of it")])
        await chat(play, [user("name it")], tools=())
        assert [(each.role, each.why, len(each.turns)) for each in play.trajectories()] == [
            ("main", StartReason.FIRST, 1),
            ("sub", StartReason.OTHER_ROLE, 1),
            ("sub", StartReason.HISTORY_REWRITTEN, 1),
            ("main", StartReason.HISTORY_REWRITTEN, 1),
            ("main", StartReason.OTHER_TOOLS, 1),
        ]


@STOPPING
async def test_a_stop_string_ends_a_turn_and_the_template_closes_it(protocols, ask: Ask) -> None:
    stop = {"stop_sequences": ["Stop:"]} if "anthropic" in ask.__name__ else {"stop": ["Stop:"]}
    async with clients(protocols, lambda row: "Hm. Stop: and more") as play:
        messages = [user("begin")]
        got = await ask(play, messages, **stop)
        assert "Stop" not in json.dumps(messages)
        assert getattr(got, "stop_sequence", "Stop:") == "Stop:"
        messages.append(user("go on"))
        await ask(play, messages)
        (trajectory,) = play.trajectories()
        assert "<|im_start|>assistant\nHm. Stop:<|im_end|>\n<|im_start|>user\ngo on" in play.row()
        turn = trajectory.turns[0]
        assert play.engine.chat.decode(trajectory.token_ids[turn.start : turn.end].tolist()) == "Hm. Stop:"


@WAYS
async def test_a_token_limit_cuts_a_turn_and_the_template_closes_it(protocols, ask: Ask) -> None:
    async with clients(protocols, lambda row: "abcdefgh") as play:
        messages = [user("begin")]
        got = await ask(play, messages, max_tokens=5)
        ends = {getattr(got, name, None) for name in ("finish_reason", "stop_reason", "status")}
        assert ends & {"length", "max_tokens", "incomplete"}
        messages.append(user("go on"))
        await ask(play, messages)
        (trajectory,) = play.trajectories()
        assert "<|im_start|>assistant\nabcde<|im_end|>\n<|im_start|>user\ngo on" in play.row()
        assert not trajectory.loss_mask[trajectory.turns[0].end]


async def test_arguments_of_the_template_make_another_stream(protocols) -> None:
    template = f"{CHAT_ML}{{%- if add_generation_prompt and enable_thinking is false %}}No thoughts.{{% endif -%}}"
    async with clients(protocols, lambda row: "Yes.", template=template) as play:
        messages = [user("begin")]
        for thinking in (True, False, False):
            arguments = {"enable_thinking": thinking, "tokenize": True, "unknown": 1}
            await chat(play, messages, extra_body={"chat_template_kwargs": arguments})
            messages.append(user("go on"))
        first, other = play.trajectories()
        assert (other.why, len(first.turns), len(other.turns)) == (StartReason.OTHER_TOOLS, 1, 2)
        assert [play.row(part).count("No thoughts.Yes.") for part in (0, 1)] == [0, 2]


async def test_a_system_message_in_mid_conversation_goes_on_in_the_stream(protocols) -> None:
    async with clients(protocols, lambda row: "Yes.") as play:
        messages = [user("begin")]
        await anthropic(play, messages)
        messages += [{"role": "system", "content": "It is late."}, user("go on")]
        await anthropic(play, messages)
        assert len(play.trajectories()) == 1
        assert "<|im_start|>system\nIt is late.<|im_end|>" in play.row()


@pytest.mark.parametrize("typed", [False, True], ids=["easy", "typed"])
async def test_an_assistant_s_several_texts_and_a_tool_named_in_a_result_are_read_whole(protocols, typed: bool) -> None:
    async with clients(protocols, lambda row: "Yes.") as play:
        parts = [{"type": "output_text", "text": text, "annotations": []} for text in ("Text one.", "Text two.")]
        parts.append({"type": "refusal", "refusal": "No more."})
        said = {"role": "assistant", "content": parts, **({"type": "message", "id": "m", "status": "completed"} if typed else {})}
        await play.openai.responses.create(model="main", input=[user("begin"), said, user("go on")])
        assert "<|im_start|>assistant\nText one.\nText two.\nNo more.<|im_end|>" in play.row()
        named = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "tool_reference", "tool_name": "get_weather"}]}
        conversation = [user("begin")]
        await anthropic(play, conversation)
        await anthropic(play, [*conversation, {"role": "user", "content": [named]}])
        assert play.row(1).count("tool_response>") == 2
        assert "<tool_response>\nget_weather\n</tool_response>" in play.row(1)


async def test_many_conversations_at_once(protocols) -> None:
    def echo(row: str) -> str:
        return f"Number {row.rpartition('number ')[2].partition('<')[0]}."

    limits = GatewayLimits(msgspec.structs.replace(LIMITS, max_turns=1000), max_trajectories=256)
    async with clients(protocols, echo, limits) as play:

        async def converse(number: int) -> None:
            messages = [user(f"number {number}")]
            for turn in range(2):
                await (*BOTH, responses, responses_stream)[number % 6](play, messages)
                messages.append(user(f"turn {turn}, number {number}"))

        await asyncio.gather(*(converse(number) for number in range(256)))
        trajectories = play.trajectories()
        assert len(trajectories) == 256
        found = set()
        for part, trajectory in enumerate(trajectories):
            row = play.row(part)
            number = row.partition("number ")[2].partition("<")[0]
            assert (row.count(f"Number {number}."), len(trajectory.turns)) == (2, 2)
            found.add(number)
        assert len(found) == 256


async def test_an_answer_that_never_arrived_is_taken_back(protocols) -> None:
    async with clients(protocols, lambda row: "Yes.", outlives_s=0.05) as play:
        messages = [user("begin")]
        await chat(play, messages)
        messages.append(user("go on"))
        play.engine.gate.clear()
        leaving = asyncio.create_task(chat(play, messages))
        await until(lambda: play.engine.running == 1)
        leaving.cancel()
        await until(lambda: play.engine.running == 0)  # it is not sampled to its end
        play.engine.gate.set()
        await chat(play, messages)
        (trajectory,) = play.trajectories()
        assert len(trajectory.turns) == 2


@pytest.mark.parametrize("ask", [chat, anthropic], ids=["openai", "anthropic"])
async def test_a_library_that_asks_again_gets_the_first_answer(protocols, ask: Ask) -> None:
    """Its connection ends before the answer is there, so it sends the request once more."""
    async with clients(protocols, lambda row: "Yes.", retries=20) as play:  # so that one gets the answer within its 0.3 s
        play.engine.gate.clear()
        asking = asyncio.create_task(ask(play, [user("begin")], timeout=0.3))
        await until(lambda: play.played.attempts.joined >= 1)
        play.engine.gate.set()
        await asking
        assert len(play.engine.prompts) == 1
        assert len(play.trajectories()[0].turns) == 1


async def test_the_same_words_on_purpose_are_sampled_again(protocols) -> None:
    async with clients(protocols, lambda row: "Yes.") as play:
        for _ in range(2):
            await chat(play, [user("begin")])
        assert [each.why for each in play.trajectories()] == [StartReason.FIRST, StartReason.PARALLEL]
        for _ in range(2):
            await chat(play, [user("begin")], extra_headers={"Idempotency-Key": "one"})
        assert len(play.engine.prompts) == 3


@pytest.mark.parametrize("ask", [chat_stream, anthropic_stream], ids=["openai", "anthropic"])
async def test_a_stream_is_kept_alive_until_its_turn_is_whole(protocols, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library reads on over what keeps its stream alive, which comes again and again."""
    sent: list[bytes] = []
    write = web.StreamResponse.write

    async def noted(response: web.StreamResponse, data: bytes) -> None:
        sent.append(data)
        await write(response, data)

    monkeypatch.setattr(web.StreamResponse, "write", noted)
    async with clients(protocols, lambda row: "Yes.", keep_alive_s=0.05) as play:
        play.engine.gate.clear()
        asking = asyncio.create_task(ask(play, [user("begin")]))
        await until(lambda: len(sent) >= 5)
        play.engine.gate.set()
        await asking
        assert len(play.engine.prompts) == 1
    assert set(sent[:5]) == {b": keep-alive\n\n" if ask is chat_stream else b'event: ping\ndata: {"type": "ping"}\n\n'}


async def test_log_probabilities_and_tokens_are_told(protocols) -> None:
    async with clients(protocols, lambda row: "Yes.") as play:
        got = await chat(play, [user("begin")], logprobs=True, extra_body={"return_token_ids": True})
        (trajectory,) = play.trajectories()
        sampled = trajectory.loss_mask
        assert [each.logprob for each in got.logprobs.content] == pytest.approx(trajectory.logprobs[sampled].tolist())
        assert got.token_ids == trajectory.token_ids[sampled].tolist()


async def test_what_else_there_is_to_ask(protocols) -> None:
    async with clients(protocols, lambda row: "Yes.") as play:
        assert [model.id async for model in play.openai.models.list()] == ["policy"]
        counted = await play.anthropic.messages.count_tokens(model="main", system="Be brief.", messages=[user("begin")])
        await anthropic(play, [user("begin")], tools=())
        assert counted.input_tokens == len(play.engine.prompts[0])
        assert len(play.trajectories()) == 1


async def test_tokens_are_counted_of_what_a_turn_would_be_given(protocols) -> None:
    quoted = {"type": "document", "title": "t", "source": {"type": "text", "media_type": "text/plain", "data": "FACT"}}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    async with clients(protocols, lambda row: "Yes.") as play:
        count = partial(play.anthropic.messages.count_tokens, model="main")
        counted = await count(messages=[{"role": "user", "content": [quoted]}])
        await anthropic(play, [{"role": "user", "content": [quoted]}], tools=(), system="")
        assert counted.input_tokens == len(play.engine.prompts[0])
        with pytest.raises(BadRequestError, match="content of type image is not supported"):
            await count(messages=[{"role": "user", "content": [image]}])
        with pytest.raises(BadRequestError, match=r"messages\.0\.role"):
            await count(messages=[{"role": "robot", "content": "x"}])
