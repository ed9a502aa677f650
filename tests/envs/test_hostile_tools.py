"""Tools that raise what no tool should raise, and tools that ignore their own cancellation: each is a tool error, in time."""

import asyncio
import logging
import re
import threading
from collections.abc import Callable
from typing import NoReturn

import pytest

from asyncrl.core.ids import TaskId
from asyncrl.core.messages import Message, ToolCall
from asyncrl.core.task import Task
from asyncrl.core.text import KEPT_CHARACTERS
from asyncrl.envs import Action, Fault, StepResult, ToolEnvironment, tool
from asyncrl.envs.hosting import guarded_calls, threads

TASK = Task(id=TaskId("t"), prompt="Find it.")


class Unprintable(Exception):
    def __str__(self) -> NoReturn:
        raise SystemExit(1)


class Nameless(type):
    @property
    def __name__(cls) -> NoReturn:
        raise SystemExit(2)


class Unnamed(Exception, metaclass=Nameless):
    pass


class Uncounted(str):
    __slots__ = ()

    def __len__(self) -> NoReturn:
        raise SystemExit(3)


class Odd(Exception):
    def __str__(self) -> str:
        return Uncounted("odd")


RAISED: dict[str, Callable[[], BaseException]] = {
    "SystemExit: 3": lambda: SystemExit(3),
    "KeyboardInterrupt: ": KeyboardInterrupt,
    "GeneratorExit: ": GeneratorExit,
    "CancelledError: mine": lambda: asyncio.CancelledError("mine"),
    "Unprintable: (no text: its __str__ raised SystemExit)": Unprintable,
    "Unnamed: mine": lambda: Unnamed("mine"),
    "Odd: odd": Odd,
}


class Hostile(ToolEnvironment):
    """Its tools wait for nothing that a test does not end: a test that would have to wait for them has failed."""

    tool_timeout_s = 30.0

    def __init__(self) -> None:
        self.ends = asyncio.Event()
        self.seen: list[str] = []
        self.threads: list[threading.Thread] = []

    @tool
    async def raise_(self, what: str) -> str:
        raise RAISED[what]()

    @tool
    def raise_in_thread(self, what: str) -> str:
        raise RAISED[what]()

    @tool
    def count_for_ever(self) -> str:
        self.threads.append(threading.current_thread())
        while not self.ends.is_set():
            pass
        return "too late"

    @tool
    def stop_iteration(self) -> str:
        return next(iter([]))

    @tool
    async def cancel_myself(self) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "never"

    @tool
    async def ignore_everything(self) -> str:
        while not self.ends.is_set():
            try:
                await self.ends.wait()
            except asyncio.CancelledError:
                self.seen.append("cancelled")
        return "too late"

    @tool
    async def clean_up(self) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            self.seen.append("cleaned up")
        return "never"

    @tool(timeout_s=60)
    async def fine(self) -> str:
        return "fine"

    def reward(self, task: Task, answer: str) -> float:
        return 1.0


async def turn(environment: Hostile, *calls: ToolCall) -> StepResult:
    await environment.reset(TASK)
    async with asyncio.timeout(60):
        return await environment.step(Action("", calls))


@pytest.mark.parametrize("name", ["raise_", "raise_in_thread"])
@pytest.mark.parametrize("what", RAISED)
async def test_whatever_a_tool_raises_is_told_to_the_model(name: str, what: str):
    result = await turn(Hostile(), ToolCall(name, {"what": what}), ToolCall("fine", {}))
    assert result.observation.messages == (Message("tool", f"error: {what}"), Message("tool", "fine"))
    assert (result.fault, result.metrics["tool_errors"]) == (Fault.TOOL_ERROR, 1.0)
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


async def test_what_is_told_of_a_tool_that_failed_is_short_and_names_its_line():
    class Chatty(Hostile):
        @tool
        async def dump(self) -> str:
            raise ValueError("x" * 1_000_000) from OSError("y" * 1_000_000)

    result = await turn(Chatty(), ToolCall("dump", {}))
    (error,) = result.errors
    assert (error.method, error.file, error.kind) == ("dump", __file__, "ValueError")
    assert str(error).startswith(f"dump() of test_hostile_tools.py:{error.line} raised ValueError: xxx")
    assert "characters cut] xxx" in error.problem
    assert len(error.problem) + len(error.traceback) < 2.1 * KEPT_CHARACTERS
    assert "Traceback (most recent call last)" in error.traceback
    assert 'raise ValueError("x" * 1_000_000)' in error.traceback
    assert set(re.findall(r'File "(.+?)"', error.traceback)) == {__file__}, "only the user's own lines"


async def test_an_iterator_that_ends_in_a_plain_tool_is_an_error_at_once():
    result = await turn(Hostile(), ToolCall("stop_iteration", {}))
    (message,) = result.observation.messages
    assert "StopIteration" in message.content
    assert result.fault is Fault.TOOL_ERROR


async def test_a_tool_that_cancels_its_own_task_cancels_nothing_else():
    result = await turn(Hostile(), ToolCall("cancel_myself", {}), ToolCall("fine", {}))
    assert [message.content for message in result.observation.messages] == ["error: CancelledError: ", "fine"]


async def test_a_tool_that_ignores_its_cancellation_is_left_behind_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(guarded_calls, "CANCELLED_TOOL_S", 0.05)
    environment = Hostile()
    environment.tool_timeout_s = 0.05
    result = await turn(environment, ToolCall("ignore_everything", {}), ToolCall("fine", {}))
    assert [message.content for message in result.observation.messages] == [
        "error: ignore_everything took longer than 0.05 s",
        "fine",
    ]
    assert environment.seen == ["cancelled"]
    (said,) = [
        each.getMessage() for each in caplog.records if (each.levelno, each.name) == (logging.WARNING, guarded_calls.__name__)
    ]
    assert said.startswith("tool ignore_everything of Hostile ")
    assert "let asyncio.CancelledError out of it" in said
    environment.ends.set()


async def test_a_turn_that_is_cancelled_cancels_its_tool_and_waits_for_its_cleaning_up():
    environment = Hostile()
    await environment.reset(TASK)
    step = asyncio.create_task(environment.step(Action("", (ToolCall("clean_up", {}),))))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert environment.seen == []
    step.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait({step})
    assert step.cancelled()
    assert environment.seen == ["cleaned up"]


async def test_a_plain_tool_whose_time_is_over_does_not_keep_the_interpreter_busy(monkeypatch: pytest.MonkeyPatch):
    """A policy that writes ``while True`` into a code tool: a thread for each would slow down everything in the process."""
    monkeypatch.setattr(threads, "INTERRUPTED_AFTER_S", 0.05)
    environment = Hostile()
    environment.tool_timeout_s = 0.2
    try:
        result = await turn(environment, ToolCall("count_for_ever", {}), ToolCall("fine", {}))
        assert [message.content for message in result.observation.messages] == [
            "error: count_for_ever took longer than 0.2 s",
            "fine",
        ]
        (thread,) = environment.threads
        await asyncio.to_thread(thread.join, 60)
        assert not thread.is_alive()
    finally:
        environment.ends.set()
