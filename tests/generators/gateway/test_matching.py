"""Requests find the tokens that were sampled for them, whatever a client does with its conversation."""

import json
import random
from collections import Counter
from itertools import count
from typing import Any

import msgspec
import numpy as np
import pytest

from asyncrl.core.episode import Episode
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.trajectory import Sampling, StartReason, StopReason, Trajectory, VersionSpan
from asyncrl.generators.completion import Completion
from asyncrl.generators.gateway.matching import Ask, Asked, Stream, Streams, TooManyStreams, Turn
from asyncrl.generators.gateway.messages import canonical

END = 7
"""The token that ends a turn."""
Message = dict[str, Any]


class FakeEngine:
    """Samples tokens of which no two are equal, and remembers what it has seen."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._tokens, self._words = chance, count(10**6), dict[str, int]()
        self.seen: set[tuple[int, ...]] = set()
        self.facts: dict[int, tuple[float, int]] = {}

    def given(self, stream: Stream, messages: list[Message]) -> list[int]:
        words = [word for message in messages for word in ("<begin>", *canonical(message).decode().split(), "<end>")]
        cut_off = len(stream.tokens) > 0 and stream.tokens.token_ids[-1] != END
        return [*([END] if cut_off else []), *(self._words.setdefault(word, 10 + len(self._words)) for word in words)]

    def sample(self, prompt: list[int]) -> Completion:
        ids = [next(self._tokens) for _ in range(self._chance.randint(1, 4))]
        cut = self._chance.randint(0, len(ids))
        spans = [VersionSpan(0, cut, PolicyVersion(1)), VersionSpan(cut, len(ids), PolicyVersion(2))]
        logprobs = np.array([-self._chance.random() for _ in ids], np.float32)
        self.seen.add((*prompt, *ids))
        self.facts |= {each: (logprobs[at], 1 if at < cut else 2) for at, each in enumerate(ids)}
        spans = [span for span in spans if span.start < span.end]
        return Completion(np.array(ids, np.int32), logprobs, tuple(spans), finished_by_stop=False)


class Flying(msgspec.Struct):
    """A request that was not answered yet."""

    ask: Ask
    given: list[int]
    prompt: list[int]
    conversation: list[Message]


class Play:
    """A random episode: conversations go on, branch, are edited, compacted and asked in parallel; answers fail and are lost."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.engine, self.streams = FakeEngine(self.chance), Streams(1000)
        self.conversations: list[list[Message]] = [[{"role": "user", "content": "task"}]]
        self.flying: list[Flying] = []
        self.delivered: list[int] = []
        self.lost: set[int] = set()
        self.ids = count()

    def run(self) -> tuple[Trajectory, ...]:
        for _ in range(self.chance.randint(3, 30)):
            if self.flying and self.chance.random() < 0.5:
                self.answer(self.flying.pop(self.chance.randrange(len(self.flying))))
            else:
                self.ask()
        return self.streams.trajectories()

    def ask(self) -> None:
        conversation = self.changed(self.chance.choice(self.conversations))
        if conversation[-1]["role"] == "assistant":
            conversation.append({"role": "user", "content": "go on"})
        sent = json.loads(json.dumps(conversation))
        tools = self.chance.choice([(), (), (), ({"name": "t"},)])
        ask = self.streams.begin(Asked("main", sent, tools))
        given = self.engine.given(ask.stream, sent[ask.matched :])
        self.flying.append(Flying(ask, given, [*ask.stream.tokens.token_ids, *given], conversation))

    def changed(self, conversation: list[Message]) -> list[Message]:
        kind, chance = self.chance.random(), self.chance
        if kind > 0.45:
            return conversation
        copy = [dict(message) for message in conversation]
        if kind < 0.15:
            copy = copy[: chance.randint(1, len(copy))]
        elif kind < 0.25:
            copy = [copy[0], {"role": "user", "content": "summary"}]
        elif kind < 0.35:
            copy[chance.randrange(len(copy))]["content"] = "edited"
        else:
            copy = [{"role": "system", "content": "sub"}, {"role": "user", "content": "part"}]
        self.conversations.append(copy)
        return copy

    def answer(self, flying: Flying) -> None:
        if self.chance.random() < 0.1:
            self.streams.give_up(flying.ask)
            return
        completion, message = self.engine.sample(flying.prompt), self.message()
        turn = self.streams.finish(flying.ask, flying.given, completion, 1.0, message)
        ids = completion.token_ids.tolist()
        if self.chance.random() < 0.1 and self.streams.take_back(turn):
            self.lost |= set(ids)
            return
        self.delivered += ids
        flying.conversation += [
            self.echoed(message),
            {"role": "tool" if message.get("tool_calls") else "user", "content": f"seen {self.chance.randint(0, 2)}"},
        ]

    def message(self) -> Message:
        """Several turns say the same on purpose."""
        message: Message = {"role": "assistant", "content": self.chance.choice(["yes", "no", "maybe "])}
        if self.chance.random() < 0.5:
            arguments = self.chance.choice(['{"b": 1, "a": 2}', '{"a":3}'])
            message["tool_calls"] = [{"id": f"c{next(self.ids)}", "function": {"name": "f", "arguments": arguments}}]
        return message

    def echoed(self, message: Message) -> Message:
        """A message as a client sends it back."""
        echo, chance = json.loads(json.dumps(message)), self.chance
        if chance.random() < 0.5:
            echo["content"] = f"  {echo['content'].strip()}\n"
        if echo.get("tool_calls") and chance.random() < 0.5:
            call = echo["tool_calls"][0]["function"]
            call["arguments"] = json.dumps(json.loads(call["arguments"]), indent=1, sort_keys=True)
        if chance.random() < 0.3:
            echo["reasoning"] = "because"
        if chance.random() < 0.2:
            echo["content"] = [{"type": "text", "text": echo["content"]}]
        return echo


@pytest.mark.parametrize("part", range(4))
def test_each_delivered_token_is_trained_once_after_what_the_engine_saw(part: int) -> None:
    whys, lost = Counter[StartReason](), 0
    for seed in range(part * 1000, part * 1000 + 1000):
        play = Play(seed)
        trajectories = play.run()
        trained = [token for each in trajectories for token in each.token_ids[each.loss_mask].tolist()]
        assert Counter(trained) == Counter(play.delivered), seed
        assert not play.lost & set(trained), seed
        for trajectory in trajectories:
            check(trajectory, play.engine)
        if trajectories:
            episode(trajectories).check()
        whys += Counter(each.why for each in trajectories)
        lost += bool(play.lost)
    assert whys.keys() >= set(StartReason) - {StartReason.OTHER_ROLE}
    assert lost > 100


def check(trajectory: Trajectory, engine: FakeEngine) -> None:
    ids, versions = trajectory.token_ids.tolist(), trajectory.versions().tolist()
    for turn in trajectory.turns:
        assert tuple(ids[: turn.end]) in engine.seen
    assert trajectory.turns[-1].end == len(ids)
    for at, sampled in enumerate(trajectory.loss_mask):
        told = engine.facts[ids[at]] if sampled else (0.0, -1)
        assert (trajectory.logprobs[at], versions[at]) == told


def episode(trajectories: tuple[Trajectory, ...]) -> Episode:
    return Episode(
        task_id=TaskId("t"),
        group_id=GroupId(0),
        sample_index=0,
        attempt=0,
        trajectories=trajectories,
        reward=0.0,
        stop_reason=StopReason.ENVIRONMENT_DONE,
        sampling=Sampling(1.0),
    )


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str, *ids: str) -> Message:
    calls = [{"id": each, "function": {"name": "f", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def completion(*ids: int) -> Completion:
    spans = (VersionSpan(0, len(ids), PolicyVersion(0)),)
    return Completion(np.array(ids, np.int32), np.zeros(len(ids), np.float32), spans, True)


def play_turn(streams: Streams, messages: list[Message], token: int, answer: Message, role: str = "main") -> Turn:
    ask = streams.begin(Asked(role, messages))
    return streams.finish(ask, [1] * (len(messages) - ask.matched), completion(token), 0.0, answer)


def test_a_conversation_that_goes_on_is_one_stream() -> None:
    streams = Streams(4)
    play_turn(streams, [user("a")], 50, said("x"))
    play_turn(streams, [user("a"), said(" x\n"), user("b")], 51, said("y"))
    (stream,) = streams.trajectories()
    assert (stream.token_ids.tolist(), stream.why, stream.parent) == ([1, 50, 1, 51], StartReason.FIRST, None)


def test_equal_turns_are_told_apart_by_the_names_of_their_calls() -> None:
    streams = Streams(4)
    play_turn(streams, [user("a")], 50, said("", "one"))
    play_turn(streams, [user("a")], 60, said("", "two"))
    play_turn(streams, [user("a"), said("", "one"), user("b")], 51, said("done"))
    first, second = streams.trajectories()
    assert first.token_ids.tolist() == [1, 50, 1, 51]
    assert (second.token_ids.tolist(), second.why) == ([1, 60], StartReason.PARALLEL)


def test_a_branch_has_what_came_before_as_context() -> None:
    streams = Streams(4)
    play_turn(streams, [user("a")], 50, said("x"))
    play_turn(streams, [user("a"), said("x"), user("b")], 51, said("y"))
    play_turn(streams, [user("a"), said("x"), user("other")], 52, said("z"))
    _, branch = streams.trajectories()
    assert (branch.parent, branch.shared, branch.why) == (0, 2, StartReason.HISTORY_REWRITTEN)
    assert branch.token_ids.tolist() == [1, 50, 1, 52]
    assert branch.loss_mask.tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Asked("sub", [user("part")]), StartReason.OTHER_ROLE),
        (Asked("main", [user("part")], [{"name": "t"}]), StartReason.OTHER_TOOLS),
        (Asked("main", [user("part")], (), {"enable_thinking": False}), StartReason.OTHER_TOOLS),
        (Asked("main", [user("part")]), StartReason.HISTORY_REWRITTEN),
        (Asked("main", [user("a")]), StartReason.PARALLEL),
    ],
    ids=["role", "tools", "arguments", "compaction", "again"],
)
def test_why_a_stream_begins(asked: Asked, why: StartReason) -> None:
    streams = Streams(4)
    play_turn(streams, [user("a")], 50, said("x"))
    assert streams.begin(asked).stream.why is why


def test_a_turn_from_which_somebody_went_on_is_not_taken_back() -> None:
    streams = Streams(4)
    turn = play_turn(streams, [user("a")], 50, said("x"))
    ask = streams.begin(Asked("main", [user("a"), said("x"), user("b")]))
    assert not streams.take_back(turn)
    streams.give_up(ask)
    (stream,) = streams.trajectories()
    assert stream.token_ids.tolist() == [1, 50]


def test_a_stream_too_many_is_refused_and_others_go_on() -> None:
    streams = Streams(1)
    lost = play_turn(streams, [user("a")], 50, said("x"))
    with pytest.raises(TooManyStreams):
        streams.begin(Asked("main", [user("other")]))
    play_turn(streams, [user("a"), said("x"), user("b")], 51, said("y"))
    assert not streams.take_back(lost)
    assert len(streams.trajectories()) == 1
