"""Environments that the tests serve: each does one thing that a server must survive."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

from asyncrl.core.task import Task
from asyncrl.envs import Action, Environment, Observation, StepResult, ToolEnvironment, ToolError, tool


class Notes(ToolEnvironment):
    """Keeps notes, one list for each episode."""

    system_prompt = "Take notes."
    open: ClassVar[list["Notes"]] = []
    closed = 0
    begun = 0
    cancelled = 0
    unblocked: ClassVar[threading.Event]

    def __init__(self, prefix: str = "", blocks_s: float = 0.0) -> None:
        self.prefix = prefix
        self.notes: list[str] = []
        Notes.open.append(self)
        time.sleep(blocks_s)

    @tool
    async def note(self, text: str, seconds: float = 0.0) -> str:
        """Write a note down."""
        Notes.begun += 1
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            Notes.cancelled += 1
            raise
        if text == "forbidden":
            raise ToolError("no such note")
        self.notes.append(self.prefix + text)
        return " ".join(self.notes)

    @tool
    async def block(self) -> str:
        """Block the event loop, until the test ends that."""
        Notes.unblocked.wait()
        return "done"

    def reward(self, task: Task, answer: str) -> float:
        if answer == "break":
            raise KeyError("broken on purpose")
        return float(answer == task.data["answer"])

    async def close(self) -> None:
        Notes.closed += 1
        Notes.open.remove(self)  # last, since tests wait for it


class Fading(Notes):
    """Stands on something that ends by itself."""

    @classmethod
    @asynccontextmanager
    async def share(cls, **options: object) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(cls.fade())
            yield None

    @staticmethod
    async def fade() -> None:
        while not Notes.open:  # noqa: ASYNC110 - an episode has begun
            await asyncio.sleep(0.01)
        raise OSError("the database went away")


class NeverReady(Notes):
    """Takes for ever to set up what its episodes share."""

    @classmethod
    @asynccontextmanager
    async def share(cls, **options: object) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield None


class Wrong(Environment):
    """Returns what no step may return."""

    async def reset(self, task: Task) -> Observation:
        return Observation(())

    async def step(self, action: Action) -> StepResult:
        return "nothing"  # type: ignore[return-value]
