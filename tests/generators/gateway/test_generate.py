"""Clients that send token ids, as vLLM's own endpoint takes them, and as the library of verifiers reads its answers."""

from typing import Any

import httpx
import msgspec
import openai
import pytest
from client_calls import chat, user
from played import LIMITS, Clients, clients

from asyncrl.core.trajectory import StartReason, StopReason
from asyncrl.generators.gateway.episode import GatewayLimits


async def generate(play: Clients, ids: list[int], model: str = "main", **sampling: Any) -> dict[str, Any]:
    """Ask as verifiers does, with the library of OpenAI at another path than its own."""
    more = {name: sampling.pop(name) for name in ("stream", "features") if name in sampling}
    body = {"model": model, "token_ids": ids, "sampling_params": {"logprobs": 1, "stop_token_ids": [2], **sampling}, **more}
    url = f"{play.played.anthropic_url}/inference/v1/generate"
    response = await play.openai.post(url, cast_to=httpx.Response, body=body)
    if not more.get("stream"):
        return response.json()["choices"][0]
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    (event,) = (msgspec.json.decode(each) for each in events if msgspec.json.decode(each)["choices"])
    return event["choices"][0]


def tokens(play: Clients, text: str) -> list[int]:
    return play.engine.chat.tokenizer.encode(text, add_special_tokens=False)


def numbers(row: str) -> str:
    return f"Turn {row.count('assistant')}."


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_are_continued_and_named_in_both_ways(protocols, stream: bool) -> None:
    async with clients(protocols, numbers) as play:
        prompt = tokens(play, "user begin assistant")
        ids: list[int] = []
        for number in range(3):
            choice = await generate(play, [*prompt, *ids], stream=stream)
            sampled, content = choice["token_ids"], choice["logprobs"]["content"]
            assert play.engine.chat.decode(sampled[:-1]) == f"Turn {number + 1}."
            assert [each["token"] for each in content] == [f"token_id:{token}" for token in sampled]
            assert [each["token_id"] for each in content] == sampled
            ids += [*sampled, *tokens(play, "user go on assistant")]
        (trajectory,) = play.trajectories()
        assert trajectory.token_ids.tolist() == [*prompt, *ids[: len(trajectory) - len(prompt)]]
        assert (len(trajectory.turns), trajectory.role) == (3, "main")
        assert [each["logprob"] for each in content] == pytest.approx(trajectory.logprobs[-len(sampled) :].tolist())


async def test_other_tokens_branch_where_a_turn_ends_and_begin_anew_else(protocols) -> None:
    async with clients(protocols, numbers) as play:
        prompt = tokens(play, "user begin assistant")
        first = [*prompt, *(await generate(play, prompt))["token_ids"]]
        goes_on = [*first, *tokens(play, "user go on assistant")]
        second = [*goes_on, *(await generate(play, goes_on))["token_ids"]]
        await generate(play, [*first, *tokens(play, "user instead assistant")])
        await generate(play, [*second[:-2], *tokens(play, "assistant")])  # a turn is cut, and so goes on after the first
        await generate(play, tokens(play, "user summary assistant"))
        await generate(play, prompt)
        await generate(play, prompt, model="other")
        found = [(each.why, each.parent, each.shared, each.role) for each in play.trajectories()]
        assert found == [
            (StartReason.FIRST, None, 0, "main"),
            (StartReason.HISTORY_REWRITTEN, 0, len(first), "main"),
            (StartReason.HISTORY_REWRITTEN, 0, len(first), "main"),
            (StartReason.HISTORY_REWRITTEN, None, 0, "main"),
            (StartReason.PARALLEL, None, 0, "main"),
            (StartReason.OTHER_ROLE, None, 0, "other"),
        ]


async def test_a_turn_right_after_a_turn_that_a_limit_cut(protocols) -> None:
    async with clients(protocols, numbers) as play:
        prompt = tokens(play, "user begin assistant")
        cut = await generate(play, prompt, max_tokens=2)
        assert (len(cut["token_ids"]), cut["finish_reason"]) == (2, "length")
        await generate(play, [*prompt, *cut["token_ids"]])
        (trajectory,) = play.trajectories()
        trajectory.check()
        assert [turn.start for turn in trajectory.turns] == [len(prompt), len(prompt) + 2]


async def test_a_chat_and_its_tokens_are_one_stream(protocols) -> None:
    async with clients(protocols, numbers) as play:
        await chat(play, [user("begin")], extra_body={"return_token_ids": True})
        (before,) = play.trajectories()
        await generate(play, [*before.token_ids.tolist(), *tokens(play, "user go on assistant")])
        (trajectory,) = play.trajectories()
        assert len(trajectory.turns) == 2


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"n": 2}, "n is not supported: each request has one turn"),
        ({"presence_penalty": 0.5}, "presence_penalty is not supported"),
        ({"allowed_token_ids": [5]}, "allowed_token_ids is not supported: it changes what is sampled"),
        ({"logprobs": 3}, "only sampled tokens have log-probabilities"),
        ({"prompt_logprobs": 1}, "only sampled tokens have log-probabilities"),
        ({"max_tokens": 0}, "a turn needs at least one token"),
        ({"max_tokens": "many"}, "many"),
        ({"features": {"mm_hashes": {}}}, "features is not supported: the policy reads text alone"),
    ],
    ids=str,
)
async def test_what_is_refused(protocols, asked: dict[str, Any], what: str) -> None:
    async with clients(protocols, numbers) as play:
        with pytest.raises(openai.BadRequestError) as raised:
            await generate(play, [5, 6], **asked)
        assert what in str(raised.value)
        assert play.trajectories() == ()


@pytest.mark.parametrize(
    ("ids", "what"),
    [
        ([], "token_ids"),
        ([-1], "token_ids"),
        ([10**6], "there is no token 1000000"),
        ([5] * 4000, "This model's maximum context length is 4000 tokens"),
        ("begin", "token_ids"),
    ],
    ids=["none", "negative", "unknown", "too many", "text"],
)
async def test_prompts_that_are_none(protocols, ids: Any, what: str) -> None:
    async with clients(protocols, numbers) as play:
        with pytest.raises(openai.BadRequestError) as raised:
            await generate(play, ids)
        assert what in str(raised.value)
        await generate(play, [5, 6])


async def test_sampling_is_the_recipe_s_and_limits_end_the_episode(protocols) -> None:
    limits = GatewayLimits(msgspec.structs.replace(LIMITS, max_turns=1), max_trajectories=1)
    async with clients(protocols, numbers, limits) as play:
        await generate(play, [5, 6], temperature=0.0, top_k=3, structured_outputs={"regex": "a"}, min_tokens=5)
        assert play.engine.temperatures == [1.0]
        vain = {"replaced temperature", "replaced top_k", "replaced stop_token_ids", "ignored min_tokens"}
        assert play.played.episode.asked_in_vain.keys() == vain | {"not enforced structured_outputs"}
        with pytest.raises(openai.APIStatusError, match="the episode is over: max_turns") as raised:
            await generate(play, [5, 6, 7])
        assert raised.value.status_code == 410
        assert play.played.episode.over.result() is StopReason.MAX_TURNS
