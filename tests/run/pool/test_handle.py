"""What the driver learns of a generator's process while it generates, without one."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ray.exceptions import ActorUnavailableError

from asyncrl.core.errors import ComponentFailed, DeadlineExceeded, EventLoopBlocked, ProcessDied, ProcessUnreachable
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.publication import BroadcastAddress, Publication, WeightFile
from asyncrl.core.recipe.schema import DeadlinesConfig
from asyncrl.run.pool import handle as handle_module
from asyncrl.run.pool.delivery_calls import for_engine
from asyncrl.run.pool.handle import GeneratorHandle


class Remote:
    """A method of an actor that answers as ``work`` does."""

    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        self._work = work
        self.asked = 0

    def remote(self, *arguments: Any) -> "asyncio.Future[Any]":
        self.asked += 1
        return asyncio.ensure_future(self._work())


class Actor:
    def __init__(self, work: Callable[[], Awaitable[Any]], answer: Callable[[], Awaitable[Any]]) -> None:
        self.run, self.load_publication, self.answer = Remote(work), Remote(work), Remote(answer)
        self.node = self.start = Remote(nothing)


def handle(actor: Actor, lease: float = 0.04) -> GeneratorHandle:
    return GeneratorHandle(WorkerId("generator-3"), actor, DeadlinesConfig(lease=lease), Path("/logs/generator-3.log"), ["node"])


async def nothing() -> None:
    return


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_process_that_does_not_answer_is_dead() -> None:
    """It was stopped, or some thread of it keeps the interpreter: nobody in it could say so."""
    generator = handle(Actor(forever, forever))
    with pytest.raises(
        EventLoopBlocked, match=r"generator-3 did not answer for 0\.04 s.*; see /logs/generator-3\.log, which then names the code"
    ):
        async with asyncio.timeout(60):
            await generator.run()


async def test_a_process_is_asked_again_and_again_until_it_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle_module, "RENEWALS_PER_LEASE", 6000)  # often, although each answer may take long
    asked_often = asyncio.Event()

    async def answer() -> None:
        if actor.answer.asked == 5:
            asked_often.set()

    actor = Actor(asked_often.wait, answer)
    async with asyncio.timeout(60):
        await handle(actor, lease=60.0).run()
    asked = actor.answer.asked
    await asyncio.sleep(0)
    assert asked >= 5


async def test_what_ended_its_work_is_raised() -> None:
    async def run() -> None:
        raise EventLoopBlocked("generator-3: blocked by Code.run")

    with pytest.raises(EventLoopBlocked, match=r"blocked by Code\.run"):
        await handle(Actor(run, nothing)).run()


async def out_of_reach() -> None:
    raise ActorUnavailableError("the network is down", None)


async def test_a_process_that_was_out_of_reach_for_less_than_a_lease_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle_module, "AGAIN_S", 0.001)
    connected = asyncio.Event()

    async def run() -> None:
        await (nothing() if connected.is_set() else out_of_reach())

    async def answer() -> None:
        if actor.answer.asked == 5:
            connected.set()
        await (nothing() if connected.is_set() else out_of_reach())

    actor = Actor(run, answer)
    async with asyncio.timeout(60):
        await handle(actor, lease=60.0).run()
    assert actor.run.asked > 1


async def test_a_process_that_is_out_of_reach_for_a_lease_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle_module, "AGAIN_S", 0.001)
    async with asyncio.timeout(60):
        with pytest.raises(ProcessUnreachable, match=r"generator-3 to answer: its process cannot be reached"):
            await handle(Actor(out_of_reach, out_of_reach)).run()


PUBLICATION = Publication(version=PolicyVersion(3), files=(), shards=(), fingerprints=(), fingerprint=7)


async def test_a_process_that_was_out_of_reach_while_it_loaded_tells_what_it_has_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle_module, "AGAIN_S", 0.001)

    async def load_publication() -> int:
        await (nothing() if actor.load_publication.asked == 5 else out_of_reach())
        return 7

    actor = Actor(load_publication, nothing)
    async with asyncio.timeout(60):
        assert await handle(actor, lease=60.0).load_publication(PUBLICATION) == 7


async def test_a_process_that_is_out_of_reach_for_a_lease_while_it_loads_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle_module, "AGAIN_S", 0.001)
    async with asyncio.timeout(60):
        with pytest.raises(ProcessUnreachable, match=r"generator-3 to answer: its process cannot be reached"):
            await handle(Actor(out_of_reach, out_of_reach)).load_publication(PUBLICATION)


async def test_a_load_that_takes_too_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines = DeadlinesConfig(publish=0.02)
    generator = GeneratorHandle(WorkerId("generator-3"), Actor(forever, nothing), deadlines, Path("/logs/log"), ["node"])
    with pytest.raises(DeadlineExceeded, match=r"0\.02 s .*generator-3 to load version 3.*raise deadlines\.publish"):
        await generator.load_publication(PUBLICATION)


async def test_a_generator_is_gone_when_a_worker_of_its_engine_on_another_node_ends() -> None:
    async def end() -> None:
        raise ProcessDied("a worker of the engine ended")

    generator = GeneratorHandle(
        WorkerId("generator-3"),
        Actor(forever, nothing),
        DeadlinesConfig(),
        Path("/logs/generator-3.log"),
        ["node", "other"],
        {"generator-3-node-1": Actor(end, nothing)},
    )
    for work in (generator.run(), generator.load_publication(PUBLICATION)):
        async with asyncio.timeout(60):
            with pytest.raises(ProcessDied, match="a worker of the engine ended"):
                await work


class OwnCall(Remote):
    """As of Ray: whoever no longer awaits a call does not end it."""

    def remote(self, *arguments: Any) -> Any:
        call = super().remote(*arguments)

        class Ref:
            def __await__(self) -> Any:
                return asyncio.shield(call).__await__()

        return Ref()


async def test_each_further_node_of_an_engine_has_one_call_for_as_long_as_it_answers() -> None:
    async def load() -> int:
        for _ in range(9):
            await asyncio.sleep(0)
        return 7

    actor, follower = Actor(load, nothing), Actor(forever, nothing)
    follower.run = OwnCall(forever)
    generator = GeneratorHandle(
        WorkerId("generator-3"), actor, DeadlinesConfig(), Path("/logs/log"), ["node", "other"], {"generator-3-node-1": follower}
    )
    async with asyncio.timeout(60):
        for _ in range(20):
            assert await generator.load_publication(PUBLICATION) == 7
    assert follower.run.asked == 1


async def broken() -> None:
    raise ComponentFailed("generator-3 to start: RuntimeError: Connection closed by peer")


@pytest.mark.parametrize("first", [broken, forever])
async def test_an_engine_that_loses_a_node_while_it_comes_up_may_have_a_successor(first: Callable[[], Awaitable[Any]]) -> None:
    async def end() -> None:
        raise ProcessDied("a worker of the engine ended")

    actor, follower = Actor(forever, nothing), Actor(forever if first is broken else end, nothing)
    actor.node, actor.start, follower.start = Remote(nothing), Remote(first), Remote(nothing)
    generator = GeneratorHandle(
        WorkerId("generator-3"), actor, DeadlinesConfig(), Path("/logs/log"), ["node", "other"], {"generator-3-node-1": follower}
    )
    async with asyncio.timeout(60):
        with pytest.raises(ProcessDied, match=r"further node of its engine was lost|a worker of the engine ended"):
            await generator.start()


def test_what_is_broadcast_to_one_node_of_an_engine_is_taken_by_the_workers_of_all() -> None:
    sender = BroadcastAddress("10.0.0.1", 7, b"", 60.0)
    files = tuple((WeightFile(f"/dev/shm/{name}", name, 8),) for name in ("a", "b"))
    near, far = (msgspec.structs.replace(PUBLICATION, files=each) for each in files)
    assert for_engine([near]) == near
    assert for_engine([near, far]) == msgspec.structs.replace(near, copies=(far.files,))
    far = msgspec.structs.replace(far, senders=(sender,))
    assert for_engine([near, far]).senders == for_engine([far, near]).senders == (sender,)
