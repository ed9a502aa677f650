from dataclasses import dataclass, field
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.generators.concurrency import Concurrency, EngineLoad

MOST = 64
TURNS, TURN_TOKENS, TOOL_S = 4, 100, 3
DECODED = 10
"""Tokens that a running request samples a second, as long as the engine computes no more than ``COMPUTED`` in all."""
COMPUTED = 1_000


@dataclass
class Episode:
    began: int
    tokens: int = 50
    sampled: int = 0
    computed: int = 0
    tool_ends: int = 0


@dataclass
class SimulatedEngine:
    """Admits requests while its cache has room, preempts the newest when it is full, and computes them again, as vLLM does."""

    cache: int
    running: list[Episode] = field(default_factory=list)
    waiting: list[Episode] = field(default_factory=list)
    preempted: int = 0

    def used(self) -> int:
        return sum(episode.tokens for episode in self.running)

    def load(self) -> EngineLoad:
        return EngineLoad(len(self.running), len(self.waiting), self.used() / self.cache)

    def second(self) -> list[Episode]:
        """Compute for a second; the episodes whose turn ended."""
        while self.waiting and self.used() + self.waiting[0].tokens <= self.cache:
            self.running.append(self.waiting.pop(0))
        budget, ended = COMPUTED, []
        for episode in self.running:
            lacking = min(budget, episode.tokens - episode.computed)
            episode.computed += lacking
            budget -= lacking
            if episode.computed == episode.tokens:
                sampled = min(budget, DECODED, TURN_TOKENS - episode.sampled % TURN_TOKENS)
                episode.sampled += sampled
                episode.tokens += sampled
                episode.computed += sampled
                budget -= sampled
                if sampled and episode.sampled % TURN_TOKENS == 0:
                    ended.append(episode)
        self.running = [episode for episode in self.running if episode not in ended]
        while self.used() > self.cache:
            victim = self.running.pop()
            victim.computed = 0
            self.preempted += 1
            self.waiting.insert(0, victim)
        return ended


@dataclass
class Played:
    """What came of playing: seconds that each finished episode took, the limit at each second, and preempted requests."""

    seconds: list[int]
    limits: list[int]
    preempted: int


def play(cache: int, adaptive: bool) -> Played:
    engine = SimulatedEngine(cache)
    concurrency = Concurrency(MOST, lambda limit, reason: None)
    in_tools: list[Episode] = []
    seconds, limits = [], []
    for now in range(2_000):
        playing = len(engine.running) + len(engine.waiting) + len(in_tools)
        if adaptive:
            concurrency.observe(engine.load(), playing)
        limits.append(concurrency.limit)
        engine.waiting += [episode for episode in in_tools if episode.tool_ends <= now]
        engine.waiting += [Episode(now) for _ in range(concurrency.limit - playing)]
        in_tools = [episode for episode in in_tools if episode.tool_ends > now]
        for episode in engine.second():
            if episode.sampled == TURNS * TURN_TOKENS:
                seconds.append(now - episode.began)
            else:
                episode.tool_ends = now + TOOL_S
                in_tools.append(episode)
    return Played(seconds, limits, engine.preempted)


@pytest.mark.parametrize("cache", [4_000, 8_000, 12_000])
def test_with_a_small_cache_episodes_end_sooner_and_as_many_of_them(cache: int) -> None:
    fixed, adapted = play(cache, adaptive=False), play(cache, adaptive=True)
    assert adapted.preempted < 0.6 * fixed.preempted
    assert fmean(adapted.seconds) < 0.8 * fmean(fixed.seconds)
    assert len(adapted.seconds) > 0.9 * len(fixed.seconds)
    assert 1 < min(adapted.limits) < max(adapted.limits[200:]) < MOST


def test_an_engine_with_room_keeps_all_its_episodes() -> None:
    adapted = play(MOST * 500, adaptive=True)
    assert set(adapted.limits) == {MOST}
    assert adapted.preempted == 0


def test_the_limit_falls_once_for_the_same_episodes_and_comes_back_step_by_step() -> None:
    said: list[tuple[int, str]] = []
    concurrency = Concurrency(8, lambda limit, reason: said.append((limit, reason)))
    full, calm = EngineLoad(5, 3, 0.97), EngineLoad(6, 0, 0.5)
    concurrency.observe(full, 8)
    concurrency.observe(full, 8)
    concurrency.observe(full, 8)  # those above the limit are not over yet
    assert said == [(7, "97% of the key-value cache was in use, and 3 waited for room in it")]
    concurrency.observe(full, 7)
    assert said[1:] == [(6, "97% of the key-value cache was in use, and 3 waited for room in it")]
    concurrency.observe(calm, 5)  # not all of the limit is used: nothing shows that it is too small
    assert concurrency.limit == 6
    for limit in (7, 8):
        concurrency.observe(calm, concurrency.limit)
        assert said[-1] == (limit, "the key-value cache has room again")
    concurrency.observe(calm, 8)
    assert (concurrency.limit, len(said)) == (8, 4)


def test_requests_that_wait_for_a_full_batch_change_nothing() -> None:
    concurrency = Concurrency(8, lambda limit, reason: None)
    concurrency.observe(EngineLoad(8, 5, 0.95), 13)
    assert concurrency.limit == 8


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.floats(0, 1), st.integers(0, 120)), max_size=60),
)
def test_the_limit_keeps_its_bounds(most: int, seen: list[tuple[int, int, float, int]]) -> None:
    concurrency = Concurrency(most, lambda limit, reason: None)
    for running, waiting, share, playing in seen:
        concurrency.observe(EngineLoad(running, waiting, share), playing)
        assert 1 <= concurrency.limit <= most


def test_the_load_of_an_engine_is_that_of_all_its_ranks():
    ranks = [EngineLoad(3, 1, 0.5, 10.0, 1.0, 4.0), EngineLoad(5, 0, 0.9, 20.0, 3.0, 6.0)]
    assert EngineLoad.total(ranks) == EngineLoad(8, 1, 0.9, 30.0, 2.0, 5.0), "the fullest cache, and steps side by side"
    assert EngineLoad.total(ranks[:1]) == ranks[0]


def test_a_new_most_holds_at_once_and_a_limit_that_the_cache_has_lowered_stays():
    limits: list[int] = []
    concurrency = Concurrency(64, lambda limit, reason: limits.append(limit))
    concurrency.bound(32)
    concurrency.bound(48)
    assert limits == [32, 48]
    concurrency.observe(EngineLoad(running=20, waiting=4, cache_share=0.9), playing=40)
    lowered = limits[-1]
    concurrency.bound(64)
    assert concurrency.limit == lowered < 48
    concurrency.bound(8)
    assert concurrency.limit == 8
