"""A node that does not answer is noticed, told once, and avoided until it answers."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import virtual_time

from asyncrl.core.errors import NodeLost, ProcessUnreachable
from asyncrl.run.nodes.node_watch import ASK_EVERY_S, NodeWatch

SILENCE_S = 3.0


class Cluster:
    """Nodes of which some do not answer, in virtual time."""

    def __init__(self) -> None:
        self.nodes = {"a", "b"}
        self.cut_off: set[str] = set()
        self.unreachable: set[str] = set()
        self.lost: set[str] = set()
        self.free = {"a": 100, "b": 100}
        self.told: list[tuple[str, str, float]] = []
        self.asked = 0
        self.watch = NodeWatch(self._ask, lambda: self.nodes, SILENCE_S)

    async def _ask(self, node: str) -> int:
        self.asked += 1
        if node in self.lost:
            raise NodeLost(f"node {node} is gone")
        if node in self.unreachable:
            raise ProcessUnreachable(f"node {node} cannot be reached")
        if node in self.cut_off:
            await asyncio.Event().wait()
        return self.free[node]

    async def _tell(self, what: str, node: str) -> None:
        self.told.append((what, node, asyncio.get_running_loop().time()))

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            running = asyncio.create_task(
                self.watch.run(lambda node: self._tell("silent", node), lambda node: self._tell("answers", node))
            )
            await scenario()
            assert not running.done()
            running.cancel()

        virtual_time.run(main())


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_silence_is_told_in_time_and_once_and_so_is_the_first_answer_after_it(cluster: Cluster) -> None:
    async def scenario() -> None:
        await asyncio.sleep(10)
        cluster.cut_off = {"b"}
        await asyncio.sleep(10)
        assert cluster.watch.avoided.keys() == {"b"}
        assert cluster.watch.is_silent("b")
        assert not await cluster.watch.look("b")
        cluster.cut_off = set()
        await asyncio.sleep(10)
        assert cluster.watch.avoided == {}

    cluster.run(scenario)
    (silent, one, at), (answers, other, again) = cluster.told
    assert (silent, one, answers, other) == ("silent", "b", "answers", "b")
    assert 10 + SILENCE_S <= at <= 10 + SILENCE_S + ASK_EVERY_S
    assert 20 <= again <= 20 + SILENCE_S + ASK_EVERY_S


def test_a_short_interruption_is_not_told(cluster: Cluster) -> None:
    async def scenario() -> None:
        late = asyncio.Event()

        async def ask(node: str) -> int:
            await late.wait()
            return 1

        cluster.watch._ask = ask
        await asyncio.sleep(SILENCE_S - 0.1)
        late.set()
        await asyncio.sleep(10)

    cluster.run(scenario)
    assert cluster.told == []


def test_a_call_to_a_node_ends_without_an_answer_when_the_node_falls_silent(cluster: Cluster) -> None:
    async def scenario() -> None:
        assert await cluster.watch.unless_silent(["a"], asyncio.sleep(1, "answer")) == "answer"
        cluster.unreachable = {"a"}
        assert await cluster.watch.unless_silent(["a"], asyncio.sleep(1000, "answer")) is None
        assert asyncio.get_running_loop().time() < 1 + SILENCE_S + ASK_EVERY_S

    cluster.run(scenario)


def test_a_node_is_asked_at_once_by_who_wants_to_know_and_one_that_is_not_watched_answers(cluster: Cluster) -> None:
    async def scenario() -> None:
        await asyncio.sleep(5)
        cluster.cut_off = {"a"}
        assert not await cluster.watch.look("a")
        assert await cluster.watch.look("b")
        cluster.lost = {"b"}
        assert not await cluster.watch.look("b")
        assert await cluster.watch.look("of the driver")

    cluster.run(scenario)


def test_a_silent_node_without_a_process_is_watched_until_it_answers_or_is_gone_for_good(cluster: Cluster) -> None:
    async def scenario() -> None:
        cluster.cut_off = {"a", "b"}
        await asyncio.sleep(10)
        cluster.nodes = set()
        cluster.cut_off, cluster.lost = {"a"}, {"b"}
        await asyncio.sleep(10)
        assert cluster.watch.avoided.keys() == {"a"}, "the cluster knows of the other"
        cluster.cut_off = set()
        await asyncio.sleep(10)
        assert cluster.watch.avoided == {}
        asked = cluster.asked
        await asyncio.sleep(100)
        assert cluster.asked == asked

    cluster.run(scenario)
    assert [told[:2] for told in cluster.told if told[0] == "answers"] == [("answers", "a")]


def test_a_node_that_weights_do_not_come_to_is_avoided_until_it_is_gone(cluster: Cluster) -> None:
    async def scenario() -> None:
        await asyncio.sleep(1)
        cluster.watch.has_no_weights("a")
        cluster.nodes = {"b"}
        await asyncio.sleep(100)
        assert cluster.watch.avoided.keys() == {"a"}
        cluster.lost = {"a"}
        await asyncio.sleep(10)
        assert cluster.watch.avoided == {}

    cluster.run(scenario)


def test_a_node_whose_memory_is_full_is_avoided_until_there_is_room(cluster: Cluster) -> None:
    async def scenario() -> None:
        await asyncio.sleep(1)
        cluster.free["a"] = 10 << 20
        cluster.watch.lacks("a", 50 << 20)
        cluster.nodes = {"a"}
        await asyncio.sleep(3)
        cluster.nodes = set()
        await asyncio.sleep(10)
        assert cluster.watch.avoided == {"a": "its memory file system has 10 MiB free, and 50 MiB are needed"}
        cluster.free["a"] = 50 << 20
        await asyncio.sleep(3)
        assert cluster.watch.avoided == {}

    cluster.run(scenario)
    assert cluster.told == []


def test_a_node_that_was_full_with_what_was_needed_needs_twice_as_much(cluster: Cluster) -> None:
    async def scenario() -> None:
        await asyncio.sleep(1)
        cluster.free["a"] = 50 << 20
        for _ in range(2):
            cluster.watch.lacks("a", 50 << 20)
            await asyncio.sleep(3)
        assert cluster.watch.avoided == {"a": "its memory file system has 50 MiB free, and 100 MiB are needed"}
        cluster.free["a"] = 100 << 20
        await asyncio.sleep(3)
        assert cluster.watch.avoided == {}

    cluster.run(scenario)
