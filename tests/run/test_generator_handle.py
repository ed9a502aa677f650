"""What the driver learns of a generator's process while it generates, without one."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from asyncrl.core.errors import EventLoopBlocked
from asyncrl.core.ids import WorkerId
from asyncrl.core.recipe.schema import DeadlinesConfig
from asyncrl.run.generator_handle import GeneratorHandle


class Remote:
    """A method of an actor that answers as ``work`` does."""

    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        self._work = work
        self.asked = 0

    def remote(self) -> "asyncio.Future[Any]":
        self.asked += 1
        return asyncio.ensure_future(self._work())


class Actor:
    def __init__(self, run: Callable[[], Awaitable[Any]], answer: Callable[[], Awaitable[Any]]) -> None:
        self.run, self.answer = Remote(run), Remote(answer)


def handle(actor: Actor) -> GeneratorHandle:
    return GeneratorHandle(WorkerId("generator-3"), actor, DeadlinesConfig(lease=0.04), Path("/logs/generator-3.log"), "node")


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
        async with asyncio.timeout(10):
            await generator.run()


async def test_a_process_is_asked_again_and_again_until_it_has_run() -> None:
    asked_often = asyncio.Event()

    async def answer() -> None:
        if actor.answer.asked == 5:
            asked_often.set()

    actor = Actor(asked_often.wait, answer)
    async with asyncio.timeout(10):
        await handle(actor).run()
    asked = actor.answer.asked
    await asyncio.sleep(0)
    assert asked >= 5


async def test_what_ended_its_work_is_raised() -> None:
    async def run() -> None:
        raise EventLoopBlocked("generator-3: blocked by Code.run")

    with pytest.raises(EventLoopBlocked, match=r"blocked by Code\.run"):
        await handle(Actor(run, nothing)).run()
