"""The ranks of an engine are asked together, and episodes are shared out between them."""

import asyncio
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.engine.exceptions import EngineDeadError

from asyncrl.core.errors import ProcessDied
from asyncrl.generators.vllm.engine_ranks import EngineRanks


class Client:
    """vLLM's client of three processes, each of which answers when the test says so."""

    core_engines = (b"a", b"b", b"c")

    def __init__(self) -> None:
        self.resources = SimpleNamespace(engine_dead=False, coordinator=None)
        self.answers: dict[bytes, asyncio.Future[Any]] = {}

    def _ensure_stats_update_task(self) -> None:
        """Nobody reads the load of these."""

    async def _call_utility_async(self, method: str, argument: int, *, engine: bytes) -> Any:
        self.answers[engine] = asyncio.get_running_loop().create_future()
        return method, argument, await self.answers[engine]


async def asked(client: Client, ranks: EngineRanks) -> "asyncio.Task[list[Any]]":
    """Ask all ranks, and wait until each has the question."""
    asking = asyncio.create_task(ranks.ask("load", 5))
    for _ in range(3):  # the question, the calls, their answers
        await asyncio.sleep(0)
    assert len(client.answers) == len(client.core_engines)
    return asking


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def ranks(client: Client) -> EngineRanks:
    return EngineRanks(SimpleNamespace(engine_core=client), "generator-0", 60.0)


async def test_all_ranks_answer_before_anybody_goes_on(client: Client, ranks: EngineRanks) -> None:
    asking = await asked(client, ranks)
    for place, process in enumerate(reversed(client.core_engines)):
        await asyncio.sleep(0.01)
        assert not asking.done()
        client.answers[process].set_result(place)
    assert await asking == [("load", 5, 2), ("load", 5, 1), ("load", 5, 0)]


async def test_an_error_of_one_rank_is_raised_once_all_have_answered(client: Client, ranks: EngineRanks) -> None:
    asking = await asked(client, ranks)
    client.answers[b"b"].set_exception(ValueError("no such version"))
    await asyncio.sleep(0.01)
    assert not asking.done()
    for process in (b"a", b"c"):
        client.answers[process].set_result(0)
    with pytest.raises(ValueError, match="no such version"):
        await asking


@pytest.mark.parametrize("how", ["told", "silent", "coordinator"])
async def test_a_dead_process_ends_the_question(client: Client, ranks: EngineRanks, how: str, monkeypatch) -> None:
    monkeypatch.setattr("asyncrl.generators.vllm.engine_ranks._ALIVE_S", 0.01)
    asking = await asked(client, ranks)
    client.resources.engine_dead = how == "silent"
    if how == "coordinator":
        client.resources.coordinator = SimpleNamespace(proc=SimpleNamespace(is_alive=lambda: False))
    if how == "told":
        for answer in client.answers.values():
            answer.set_exception(EngineDeadError())
    with pytest.raises(ProcessDied, match="the vLLM engine died during load"):
        await asking


async def test_a_coordinator_that_died_is_noticed_though_every_rank_answers(client: Client, ranks: EngineRanks) -> None:
    asking = await asked(client, ranks)
    client.resources.coordinator = SimpleNamespace(proc=SimpleNamespace(is_alive=lambda: False))
    for answer in client.answers.values():
        answer.set_result(0)
    with pytest.raises(ProcessDied, match="the vLLM engine died during load"):
        await asking


async def test_a_rank_that_does_not_answer_in_time_is_as_good_as_dead(client: Client, monkeypatch) -> None:
    monkeypatch.setattr("asyncrl.generators.vllm.engine_ranks._ALIVE_S", 0.01)
    asking = await asked(client, EngineRanks(SimpleNamespace(engine_core=client), "generator-0", 0.05))
    client.answers[b"a"].set_result(0)
    with pytest.raises(ProcessDied, match=r"generator-0: the vLLM engine did not answer load within 0.05 s; .*deadlines.publish"):
        await asyncio.wait_for(asking, 60)


def test_an_episode_begins_in_a_rank_with_the_fewest(ranks: EngineRanks) -> None:
    with ExitStack() as stack:
        assert sorted(stack.enter_context(ranks.used()) for _ in range(6)) == [0, 0, 1, 1, 2, 2]
        with ranks.used() as first:
            with ranks.used() as second, ranks.used() as third:
                assert {first, second, third} == {0, 1, 2}
            with ranks.used() as again:
                assert again != first
