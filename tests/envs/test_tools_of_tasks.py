"""Tools that a task describes: shown beside the environment's own, and answered by it."""

from collections.abc import Mapping
from typing import Any

import pytest

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.ids import TaskId
from asyncrl.core.messages import CallOutcome, Message, ToolCall, ToolSpec
from asyncrl.core.task import Task
from asyncrl.envs import Action, Fault, ToolEnvironment, ToolError, tool
from asyncrl.envs.base import Observation, StepResult

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER, ADD = ToolSpec("weather", "The weather.", CITY), ToolSpec("add", "Adds, as the task says.", CITY)


def task(*tools: ToolSpec) -> Task:
    return Task(id=TaskId("t"), prompt="?", tools=tools)


class Simulated(ToolEnvironment):
    @tool
    async def add(self, left: int, right: int) -> int:
        """Add."""
        return left + right

    async def run_described(self, name: str, arguments: Mapping[str, Any]) -> str:
        if arguments.get("city") == "Nowhere":
            raise ToolError("there is no such place")
        return f"{name}: {arguments}"

    def reward(self, task: Task, answer: str) -> float:
        return 1.0


class Plain(ToolEnvironment):
    def reward(self, task: Task, answer: str) -> float:
        return 1.0


class Scored(Plain):
    async def step(self, action: Action) -> StepResult:
        return StepResult(Observation(()), float(len(action.calls)), done=True)


async def test_they_are_shown_beside_those_of_the_class_and_answered() -> None:
    environment = Simulated()
    shown = await environment.reset(task(WEATHER, ADD))
    assert shown.tools == (ADD, WEATHER), "one of that name is the class's, described as the task does"
    result = await environment.step(
        Action("", (ToolCall("weather", {"city": "Oslo"}), ToolCall("add", {"left": 1, "right": 2}), ToolCall("rain", {})))
    )
    weather, added, unknown = result.observation.messages
    assert (weather, added) == (Message("tool", "weather: {'city': 'Oslo'}"), Message("tool", "3"))
    assert "no tool 'rain'" in unknown.content
    assert "weather(city: string)" in unknown.content
    assert [record.outcome for record in result.calls] == [CallOutcome.OK, CallOutcome.OK, CallOutcome.MALFORMED]
    refused = await environment.step(Action("", (ToolCall("weather", {"city": "Nowhere"}),)))
    assert refused.fault is Fault.TOOL_ERROR
    assert refused.observation.messages == (Message("tool", "error: there is no such place"),)


async def test_a_schema_with_little_in_it_is_shown_as_it_can_be() -> None:
    environment = Simulated()
    properties = {"a": {"type": None}, "b": True, "c": {"type": ["string", "null"]}}
    odd = [ToolSpec("f", "", {"properties": properties, "required": None}), ToolSpec("g", "", {"properties": None})]
    await environment.reset(task(*odd))
    (answer,) = (await environment.step(Action("", (ToolCall("h", {}),)))).observation.messages
    assert "f(a?: any, b?: any, c?: string or null)" in answer.content
    assert "g()" in answer.content


async def test_the_next_task_has_only_its_own() -> None:
    environment = Simulated()
    usual = (await environment.reset(task())).tools
    await environment.reset(task(WEATHER, ADD))
    assert (await environment.reset(task())).tools == usual
    (answer,) = (await environment.step(Action("", (ToolCall("weather", {"city": "Oslo"}),)))).observation.messages
    assert "no tool 'weather'" in answer.content
    assert Simulated.tools.keys() == {"add"}


async def test_an_environment_that_cannot_answer_them_says_so_at_once() -> None:
    with pytest.raises(
        EnvironmentBroken, match=r"task t describes tool 'weather', which Plain does not have; mark .* run_described"
    ):
        await Plain().reset(task(WEATHER))
    assert (await Scored().reset(task(WEATHER))).tools == (WEATHER,), "it scores calls itself"
