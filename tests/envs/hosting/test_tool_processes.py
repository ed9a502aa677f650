"""Tools in processes of their own: a deadline kills, whatever the tool does, and the worker goes on."""

import asyncio
import contextlib
import os
import select
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import virtual_time

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.ids import TaskId
from asyncrl.core.messages import CallOutcome, ToolCall
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs import Action, StepResult, ToolEnvironment, tool
from asyncrl.envs.hosting.episode_resources import Provided
from asyncrl.envs.hosting.tool_messages import Load
from asyncrl.envs.hosting.tool_processes import ToolProcesses
from asyncrl.envs.load import load_member

NAME = "tests.envs.process_tools:Computing"


@pytest.fixture
async def processes() -> AsyncIterator[ToolProcesses]:
    made = ToolProcesses("generator-1", most=2)
    yield made
    made.close()


async def play(processes: ToolProcesses | None, *calls: ToolCall) -> StepResult:
    environment = load_member(ClassEnvironmentConfig(name=NAME, tool_timeout_s=60.0)).make(Provided(processes=processes))
    await environment.reset(Task(id=TaskId("t"), prompt="t"))
    return await environment.step(Action("", calls))


def texts(result: StepResult) -> list[str]:
    return [message.content for message in result.observation.messages]


async def test_answers_come_in_the_order_of_the_calls_from_few_processes(processes: ToolProcesses):
    squares = await play(processes, *(ToolCall("square", {"number": number}) for number in range(8)))
    assert texts(squares) == [str(number * number) for number in range(8)]
    numbers = await play(processes, *(ToolCall("process_number", {}) for _ in range(6)))
    assert 1 <= len(set(texts(numbers))) <= 2
    assert str(os.getpid()) not in texts(numbers)


async def test_a_call_that_misses_its_deadline_is_killed_with_its_children(
    processes: ToolProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "processes"
    file.touch()
    playing = asyncio.create_task(play(processes, ToolCall("hang", {"file": str(file)})))
    async with asyncio.timeout(120):
        while not (hanging := file.read_text().split()):  # noqa: ASYNC110 - written by another process
            await asyncio.sleep(0.01)
    virtual_time.skip(monkeypatch, 60.0)
    result = await playing
    assert texts(result) == ["error: hang took longer than 60 s"]
    assert [record.outcome for record in result.calls] == [CallOutcome.TIMEOUT]
    for process in hanging:
        await asyncio.to_thread(wait_for_end, int(process))
    assert texts(await play(processes, ToolCall("square", {"number": 3}))) == ["9"]


def wait_for_end(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended before
        descriptor = os.pidfd_open(process)
        ended, _, _ = select.select([descriptor], [], [], 60)
        os.close(descriptor)
        assert ended


async def test_what_a_tool_raises_or_does_to_its_process_is_told_to_the_model(processes: ToolProcesses):
    calls = (ToolCall("refuse", {}), ToolCall("fail", {}), ToolCall("end", {"code": 3}), ToolCall("garbage", {}))
    result = await play(processes, *calls)
    refused, failed, ended, garbage = texts(result)
    assert refused == "error: not today"
    assert failed == "error: KeyError: 'inside'"
    assert ended == "error: end failed: its process exited with code 3"
    assert garbage.startswith("error: garbage failed: its process sent a message of ")
    (error,) = result.errors
    assert (error.method, Path(error.file).name) == ("fail", "process_tools.py")
    assert "# the line to name" in error.traceback
    assert texts(await play(processes, ToolCall("square", {"number": 4}))) == ["16"]


async def test_a_log_that_cannot_be_written_is_no_fault_of_the_tool(processes: ToolProcesses):
    assert texts(await play(processes, ToolCall("print_in_vain", {"text": "a"}))) == ["a"]


async def test_outside_a_run_such_a_tool_starts_a_process_of_its_own():
    assert texts(await play(None, ToolCall("square", {"number": 5}), ToolCall("square", {"number": 6}))) == ["25", "36"]


async def test_a_class_that_a_process_cannot_import_breaks_the_environment(processes: ToolProcesses):
    with pytest.raises(EnvironmentBroken, match=r"tests.envs.process_tools:Nothing cannot be loaded .* AttributeError"):
        await processes.load(Load("tests.envs.process_tools", "Nothing"))


def test_a_process_has_no_self():
    with pytest.raises(TypeError, match=r"Wrong: tool add: process=True .* make it a @staticmethod"):

        class Wrong(ToolEnvironment):
            @tool(process=True)
            def add(self, number: int) -> int:
                """Adds."""
                return number
