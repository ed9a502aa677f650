"""What is kept of an episode's traffic, and that it makes the same trajectories again, byte for byte."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic as anthropic_library
import msgspec
import openai as openai_library
import pytest
from client_calls import WAYS, anthropic, chat, chat_stream, responses, user
from kept_traffic import OtherPrompt, as_trained, played_again
from played import CALL, GATEWAY_LIMITS, Clients, clients, until

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.trajectory import StartReason, Trajectory
from asyncrl.envs.played_by_agent import GivenToAgent
from asyncrl.generators.gateway.matching import Step
from asyncrl.generators.gateway.traffic import UNANSWERED, Exchange, Traffic, TrafficRecorder

GIVEN = GivenToAgent(b'{"prompt": "begin"}', "/episodes/7", {"NAME": "value"}, ("TOKEN",))
LIMITS = msgspec.structs.replace(GATEWAY_LIMITS, keep_traffic=True)
Playing = Callable[[Clients], Awaitable[None]]


def says(row: str) -> str:
    return {0: f"Let me add.\n{CALL}", 1: CALL}.get(row.count("<tool_response>"), f"Number {len(row)}.")


async def converse(play: Clients) -> None:
    """Every way to ask, a conversation each."""
    for ask in WAYS:
        messages = [user(f"begin by {ask.__name__}")]
        for _ in range(3):
            await ask(play, messages)
        await ask(play, [user("no tools")], tools=[])


async def rewrite(play: Clients) -> None:
    """Edits, branches, compaction and stop strings."""
    for ask in (chat, anthropic, responses):
        messages = [user(f"begin by {ask.__name__}")]
        await ask(play, messages)
        await ask(play, messages)
        await ask(play, [*messages[:-1], user("instead")])
        await ask(play, [*messages, user("and")])
        await ask(play, [user("a summary"), {"role": "assistant", "content": "my own"}, user("go on")])
        await ask(play, [user("short")], max_tokens=3)
    await chat(play, [user("stopped")], stop=["add"])


async def at_once(play: Clients) -> None:
    """The same words and others at once, from one state; their answers come in another order."""
    messages = [user("begin")]
    await chat(play, messages)
    play.engine.gate.clear()
    asking = [asyncio.create_task(ask(play, list(messages))) for ask in (chat, chat_stream, chat)]
    asking += [asyncio.create_task(chat(play, [*messages, user(text)])) for text in ("one", "another")]
    await until(lambda: play.engine.running == len(asking))
    play.engine.gate.set()
    await asyncio.gather(*asking)


async def lose(play: Clients) -> None:
    """Answers that never arrive, before and after they are whole, refusals, and questions that are no turns."""
    messages = [user("begin")]
    await chat(play, messages)
    for _ in range(2):
        play.engine.gate.clear()
        leaving = asyncio.create_task(chat(play, [*messages, user("lost")]))
        await until(lambda: play.engine.running == 1)
        leaving.cancel()
        await until(lambda: play.engine.running == 0)
        play.engine.gate.set()
    with pytest.raises(openai_library.BadRequestError):
        await chat(play, [user("many " * 5000)])
    with pytest.raises(openai_library.BadRequestError):
        await chat(play, [user("two")], n=2)
    with pytest.raises(openai_library.NotFoundError):
        await play.openai.embeddings.create(model="main", input="x")
    with pytest.raises(anthropic_library.NotFoundError):
        await play.anthropic.messages.batches.retrieve("m")
    await play.anthropic.messages.count_tokens(model="main", messages=[user("begin")])
    assert [model.id async for model in play.openai.models.list()]
    await chat(play, messages)


async def lost_when_whole(play: Clients) -> None:
    """A client that leaves while its answer is made; the turn is taken back, and the conversation goes on without it."""
    messages = [user("begin")]
    await chat(play, messages)
    before = len(play.played.episode.streams.steps)
    play.engine.gate.clear()
    leaving = asyncio.create_task(chat(play, [*messages, user("lost")]))
    await until(lambda: play.engine.running == 1)
    leaving.cancel()
    attempt = next(each for each in play.played.attempts._all if not each.task.done())
    await until(lambda: attempt.is_lost)
    play.engine.gate.set()
    await until(lambda: (Step.TAKEN_BACK, 1) in play.played.episode.streams.steps[before:])
    await chat(play, messages)


async def kept(protocols: Any, playing: Playing, outlives_s: float = 15.0) -> tuple[Traffic, tuple[Trajectory, ...], Clients]:
    async with clients(protocols, says, LIMITS, outlives_s=outlives_s) as play:
        await playing(play)
    trajectories = play.trajectories()
    recorder = play.played.traffic
    assert recorder is not None
    return Traffic.read(recorder.kept(GIVEN, play.played.episode.streams.steps)), trajectories, play


@pytest.mark.parametrize(
    ("playing", "outlives_s", "steps"),
    [
        (converse, 15.0, {Step.BEGAN, Step.FINISHED}),
        (rewrite, 15.0, {Step.BEGAN, Step.FINISHED}),
        (at_once, 15.0, {Step.BEGAN, Step.FINISHED}),
        (lose, 0.05, {Step.BEGAN, Step.FINISHED, Step.GIVEN_UP}),
        (lost_when_whole, 0.2, {Step.BEGAN, Step.FINISHED, Step.TAKEN_BACK}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_kept_traffic_makes_the_same_trajectories_again(protocols, playing: Playing, outlives_s: float, steps) -> None:
    traffic, trajectories, play = await kept(protocols, playing, outlives_s)
    assert {step for step, _ in traffic.steps} == steps
    assert traffic.is_whole
    again = await played_again(protocols, play.engine.chat, LIMITS, traffic, trajectories)
    assert as_trained(again) == as_trained(trajectories)


async def test_a_request_that_is_matched_otherwise_is_noticed(protocols) -> None:
    """The regression test above can fail: a message of one request is changed by a letter."""
    traffic, trajectories, play = await kept(protocols, converse)
    exchanges = list(traffic.exchanges)
    exchanges[1] = msgspec.structs.replace(exchanges[1], asked=exchanges[1].asked.replace(b"Let me add.", b"Let me odd."))
    changed = msgspec.structs.replace(traffic, exchanges=tuple(exchanges))
    with pytest.raises(OtherPrompt):
        await played_again(protocols, play.engine.chat, LIMITS, changed, trajectories)


async def test_requests_and_answers_are_kept_as_their_clients_had_them(protocols) -> None:
    traffic, trajectories, _ = await kept(protocols, lose, 0.05)
    assert traffic.given == GIVEN
    assert [(each.path, each.status, each.turn) for each in traffic.exchanges] == [
        ("POST v1/chat/completions", 200, 0),
        ("POST v1/chat/completions", UNANSWERED, 1),
        ("POST v1/chat/completions", UNANSWERED, 2),
        ("POST v1/chat/completions", 400, 3),
        ("POST v1/chat/completions", 400, None),
        ("POST v1/embeddings", 404, None),
        ("GET v1/messages/batches/m", 404, None),
        ("POST v1/messages/count_tokens", 200, None),
        ("GET v1/models", 200, None),
        ("POST v1/chat/completions", 200, 4),
    ]
    first, *_, last = traffic.exchanges
    assert json.loads(last.asked)["messages"][2]["content"] == json.loads(first.answered)["choices"][0]["message"]["content"]
    assert all(each.arrived < each.ended for each in traffic.exchanges)
    assert [each.why for each in trajectories] == [StartReason.FIRST]


def test_traffic_that_is_too_large_is_kept_up_to_there_and_says_so() -> None:
    recorder = TrafficRecorder(largest=100)
    for number, size in enumerate((30, 30, 50, 10)):
        recorder.add(Exchange("POST v1/messages", 2 * number, 2 * number + 1, b"x" * size, 200, False, b"y" * 10, number))
    traffic = Traffic.read(recorder.kept(GIVEN, [(Step.BEGAN, 0)]))
    assert ([len(each.asked) for each in traffic.exchanges], traffic.is_whole) == ([30, 30], False)


def test_conversations_take_the_room_of_their_last_request() -> None:
    recorder, text = TrafficRecorder(), bytearray()
    for number in range(50):
        text += json.dumps([hash((number, place)) for place in range(50)]).encode()
        recorder.add(Exchange("POST v1/messages", 2 * number, 2 * number + 1, bytes(text), 200, False, b"", number))
    assert len(recorder.kept(GIVEN, [])) < len(text)


def test_damaged_traffic_is_told() -> None:
    whole = TrafficRecorder().kept(GIVEN, [])
    for damaged in (b"", whole[:-5], b"no " + whole):
        with pytest.raises(AsyncRLError, match="the kept traffic of an episode is damaged"):
            Traffic.read(damaged)
