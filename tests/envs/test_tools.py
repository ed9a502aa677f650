"""Typed Python functions as tools: description, validation, deadlines, faults."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec
import pytest

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.ids import TaskId
from asyncrl.core.messages import CallOutcome, CallRecord, MalformedCall, Message, ToolCall
from asyncrl.core.plug_ins.users_error import WrongResult
from asyncrl.core.task import Task
from asyncrl.envs import Action, Fault, StepResult, ToolEnvironment, ToolError, tool

TASK = Task(id=TaskId("t"), prompt="Find it.", data={"answer": "42"})


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Toolbox(ToolEnvironment):
    system_prompt = "Use the tools."

    @tool(timeout_s=60)
    async def add(self, left: int, right: Annotated[int, msgspec.Meta(description="the second one")] = 1) -> int:
        """Add two numbers."""
        return left + right

    @tool
    def thread_name(self) -> str:
        return threading.current_thread().name

    @tool
    async def move(self, point: Point) -> Point:
        return Point(point.x + 1, point.y)

    @tool
    async def refuse(self) -> str:
        raise ToolError("not today")

    @tool
    def crash(self) -> str:
        raise KeyError("oops")

    @tool
    async def lose_the_world(self) -> str:
        raise EnvironmentBroken("the database is gone")

    @tool
    async def hang(self) -> str:
        await asyncio.Event().wait()
        return "never"

    @tool
    def block(self) -> str:
        threading.Event().wait()
        return "never"

    def not_a_tool(self, anything):
        return anything

    def reward(self, task: Task, answer: str) -> float:
        return float(answer == task.data["answer"])


async def turn(*calls: ToolCall | MalformedCall, environment: ToolEnvironment | None = None) -> StepResult:
    environment = environment or Toolbox()
    await environment.reset(TASK)
    return await environment.step(Action("", calls))


async def test_reset_gives_prompts_and_only_marked_methods_as_tools():
    observation = await Toolbox().reset(TASK)
    assert observation.messages == (Message("system", "Use the tools."), Message("user", "Find it."))
    names = {spec.name for spec in observation.tools}
    assert names == {"add", "thread_name", "move", "refuse", "crash", "lose_the_world", "hang", "block"}


async def test_a_prompt_of_chat_messages_follows_the_system_prompt_and_joins_its_own():
    chat = (Message("user", "1+1?"), Message("assistant", "2"), Message("user", "2+2?"))
    observation = await Toolbox().reset(Task(id=TaskId("t"), prompt=chat))
    assert observation.messages == (Message("system", "Use the tools."), *chat)
    own = (Message("system", "Be brief."), *chat)
    observation = await Toolbox().reset(Task(id=TaskId("t"), prompt=own))
    assert observation.messages == (Message("system", "Use the tools.\n\nBe brief."), *chat)

    class Silent(Toolbox):
        system_prompt = ""

    assert (await Silent().reset(Task(id=TaskId("t"), prompt=own))).messages == own


def test_schema_is_the_signature():
    spec = Toolbox.tools["add"].spec
    assert spec.description == "Add two numbers."
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "left": {"type": "integer"},
            "right": {"type": "integer", "description": "the second one", "default": 1},
        },
        "required": ["left"],
        "additionalProperties": False,
    }
    nested = Toolbox.tools["move"].spec.parameters
    assert nested["properties"]["point"] == {"$ref": "#/$defs/Point"}
    assert nested["$defs"]["Point"]["required"] == ["x"]


async def test_calls_of_one_turn_are_answered_in_order():
    result = await turn(
        ToolCall("add", {"left": 2}), ToolCall("add", {"left": 2, "right": 5}), ToolCall("move", {"point": {"x": 1}})
    )
    assert [message.content for message in result.observation.messages] == ["3", "7", '{"x":2,"y":0}']
    assert {message.role for message in result.observation.messages} == {"tool"}
    assert (result.done, result.reward, result.fault) == (False, 0.0, None)
    assert result.metrics == {"tool_calls": 3.0, "tool_errors": 0.0, "malformed_calls": 0.0}


async def test_plain_tools_run_beside_the_event_loop():
    result = await turn(ToolCall("thread_name", {}))
    assert result.observation.messages[0].content == "tool-thread_name"


@pytest.mark.parametrize(
    ("call", "problem", "remedy"),
    [
        (ToolCall("ad", {}), "no tool 'ad'", "add(left: int, right: int = 1)"),
        (ToolCall("add", {}), "missing required field `left`", "add(left: int, right: int = 1)"),
        (ToolCall("add", {"left": "2"}), "Expected `int`, got `str`", "add(left: int, right: int = 1)"),
        (ToolCall("add", {"left": 2, "rihgt": 3}), "unknown field `rihgt`", "add(left: int, right: int = 1)"),
        (MalformedCall("<tool_call>{", "no closing brace"), "no closing brace", "move(point: "),
    ],
)
async def test_wrong_calls_are_told_what_would_be_right(call: ToolCall | MalformedCall, problem: str, remedy: str):
    result = await turn(call)
    (message,) = result.observation.messages
    assert message.content.startswith("error: ")
    assert problem in message.content
    assert remedy in message.content
    assert result.fault is Fault.MALFORMED_CALL
    assert result.metrics == {"tool_calls": 0.0, "tool_errors": 0.0, "malformed_calls": 1.0}


@pytest.mark.parametrize(("name", "text"), [("refuse", "error: not today"), ("crash", "error: KeyError: 'oops'")])
async def test_what_a_tool_raises_is_told_to_the_model(name: str, text: str):
    result = await turn(ToolCall(name, {}))
    assert result.observation.messages == (Message("tool", text),)
    assert result.fault is Fault.TOOL_ERROR
    assert result.metrics == {"tool_calls": 1.0, "tool_errors": 1.0, "malformed_calls": 0.0}


@pytest.mark.parametrize("name", ["hang", "block"])
async def test_a_slow_tool_is_an_error_and_blocks_nothing(name: str):
    environment = Toolbox()
    environment.tool_timeout_s = 0.05
    result = await turn(ToolCall(name, {}), ToolCall("add", {"left": 1}), environment=environment)
    assert [message.content for message in result.observation.messages] == [f"error: {name} took longer than 0.05 s", "2"]
    assert result.fault is Fault.TOOL_ERROR


async def test_of_several_faults_the_first_is_reported():
    result = await turn(ToolCall("add", {"left": 1}), ToolCall("refuse", {}), ToolCall("ad", {}))
    assert result.fault is Fault.TOOL_ERROR
    assert len(result.observation.messages) == 3


async def test_a_tool_may_declare_the_environment_broken():
    with pytest.raises(EnvironmentBroken, match="database"):
        await turn(ToolCall("lose_the_world", {}))


async def test_a_turn_without_calls_is_the_answer():
    environment = Toolbox()
    await environment.reset(TASK)
    right = await environment.step(Action("42", ()))
    assert (right.done, right.reward) == (True, 1.0)
    assert right.metrics == {"tool_calls": 0.0, "tool_errors": 0.0, "malformed_calls": 0.0}
    assert (await environment.step(Action("41", ()))).reward == 0.0


class Graded(ToolEnvironment):
    """An environment that gives the reward ``named``."""

    named: ClassVar[dict[str, float]] = {"right": 1, "polite": 0.5}

    def reward(self, task: Task, answer: str) -> dict[str, float]:
        return self.named


async def test_several_rewards_are_summed_and_reported_by_name():
    environment = Graded()
    await environment.reset(Task(id=TaskId("t"), prompt="p"))
    result = await environment.step(Action("a", ()))
    assert (result.done, result.reward) == (True, 1.5)
    assert result.metrics == {"tool_calls": 0, "tool_errors": 0, "malformed_calls": 0, "right": 1.0, "polite": 0.5}


async def test_turns_with_calls_have_rewards_of_their_own():
    class Stepwise(ToolEnvironment):
        @tool
        async def look(self) -> str:
            """Look."""
            return "seen"

        async def turn_reward(self, action: Action, calls: Sequence[CallRecord]) -> dict[str, float]:
            return {"looked": 0.25 * sum(call.outcome is CallOutcome.OK for call in calls), "wrote": float(bool(action.content))}

        def reward(self, task: Task, answer: str) -> float:
            return 1.0

    environment = Stepwise()
    await environment.reset(Task(id=TaskId("t"), prompt="?"))
    turn = await environment.step(Action("so", (ToolCall("look", {}), ToolCall("look", {}), ToolCall("see", {}))))
    assert (turn.reward, turn.metrics["looked"], turn.metrics["wrote"], turn.metrics["tool_calls"]) == (1.5, 0.5, 1.0, 2.0)
    answer = await environment.step(Action("so", ()))
    assert (answer.reward, answer.done) == (1.0, True)


@pytest.mark.parametrize(
    "value",
    [None, float("inf"), 1e300, {"a": 1e300, "b": -1e300}, {"tool_calls": 1.0}, {"a": "b"}, 10**400, "42", b"42", {"a": "42"}],
)
async def test_a_wrong_reward_of_a_turn_names_the_method(value: object):
    class Wrong(ToolEnvironment):
        def turn_reward(self, action: Action, calls: Sequence[CallRecord]) -> object:
            return value

        def reward(self, task: Task, answer: str) -> float:
            return 1.0

    environment = Wrong()
    await environment.reset(Task(id=TaskId("t"), prompt="?"))
    with pytest.raises(WrongResult) as raised:
        await environment.step(Action("", (ToolCall("look", {}),)))
    assert raised.value.method.__name__ == "turn_reward"


async def test_a_reward_is_not_called_like_a_count():
    class Muddled(Graded):
        named: ClassVar[dict[str, float]] = {"right": 1, "tool_calls": 1}

    environment = Muddled()
    await environment.reset(Task(id=TaskId("t"), prompt="p"))
    with pytest.raises(ValueError, match="'tool_calls'"):
        await environment.step(Action("a", ()))


async def test_rewards_may_be_async_and_their_exceptions_break_the_environment():
    class Judge(ToolEnvironment):
        async def reward(self, task: Task, answer: str) -> float:
            await asyncio.sleep(0)
            return 0.5 / len(answer)

    environment = Judge()
    await environment.reset(TASK)
    assert (await environment.step(Action("a", ()))).reward == 0.5
    with pytest.raises(ZeroDivisionError):
        await environment.step(Action("", ()))


async def test_tools_are_inherited_and_a_name_may_be_overridden():
    class More(Toolbox):
        @tool
        async def add(self, left: int, right: int) -> int:
            """Add, loudly."""
            return 10 * (left + right)

    assert More.tools.keys() == Toolbox.tools.keys()
    result = await turn(ToolCall("add", {"left": 1, "right": 2}), environment=More())
    assert result.observation.messages[0].content == "30"


def test_signatures_that_cannot_be_described_are_refused_with_the_class():
    def define(method):
        return type("Mine", (ToolEnvironment,), {"search": tool(method)})

    async def untyped(self, query):
        return query

    async def variadic(self, *queries: str):
        return queries

    async def no_json(self, query: threading.Thread):
        return query

    async def without_self(query: str):
        return query

    async def without_parameters():
        return 1

    async def without_self_or_type(query, most: int = 3):
        return query

    for forgotten in (without_self, without_parameters, without_self_or_type):
        with pytest.raises(TypeError, match="Mine: tool search: its first parameter must be `self`"):
            define(forgotten)
    with pytest.raises(TypeError, match=r"Mine: tool search: parameter 'query' has no type; write `query: str`"):
        define(untyped)
    with pytest.raises(TypeError, match=r"Mine: tool search: \*queries: str cannot be passed by name"):
        define(variadic)
    with pytest.raises(TypeError, match="Mine: tool search: JSON cannot carry"):
        define(no_json)


async def test_every_call_of_a_turn_is_recorded_in_order():
    environment = Toolbox()
    environment.tool_timeout_s = 0.05
    calls = (
        ToolCall("add", {"left": 1}),
        ToolCall("refuse", {}),
        ToolCall("hang", {}),
        ToolCall("fly", {}),
        ToolCall("add", {"left": "x"}),
        MalformedCall("{", "it does not end"),
    )
    records = (await turn(*calls, environment=environment)).calls
    ok, error, timeout, malformed = CallOutcome.OK, CallOutcome.ERROR, CallOutcome.TIMEOUT, CallOutcome.MALFORMED
    assert [record.outcome for record in records] == [ok, error, timeout, malformed, malformed, malformed]
    assert [record.tool for record in records] == ["add", "refuse", "hang", "fly", "add", ""]
    assert [record.problem for record in records[:3]] == ["", "not today", "hang took longer than 0.05 s"]
    assert records[2].seconds >= 0.05
    assert records[2].seconds > records[0].seconds > records[3].seconds == 0


class Meeting(ToolEnvironment):
    """Tools that only end when the others have begun."""

    def __init__(self) -> None:
        self.barrier, self.order, self.lock = threading.Barrier(3, timeout=60), list[int](), asyncio.Lock()

    @tool
    def meet(self, number: int) -> int:
        """Meets the others."""
        self.barrier.wait()
        return number

    @tool
    async def meet_async(self, number: int) -> int:
        """Meets the others."""
        await asyncio.to_thread(self.barrier.wait)
        return number

    @tool
    async def in_turn(self, number: int) -> int:
        """Lets the calls in as they come."""
        async with self.lock:
            await asyncio.sleep(0)
            self.order.append(number)
        return number

    @tool(timeout_s=0.05)
    async def impatient(self) -> str:
        """Hangs."""
        await asyncio.Event().wait()
        return ""

    @tool(max_calls=2)
    async def rare(self) -> str:
        """May be called twice."""
        return "here"

    @tool
    @staticmethod
    def half(number: int) -> float:
        """Needs nothing of the environment."""
        return number / 2

    def reward(self, task: Task, answer: str) -> float:
        return 0.0


async def test_the_calls_of_a_turn_run_side_by_side_and_are_answered_in_order():
    calls = [ToolCall("meet", {"number": 1}), ToolCall("meet_async", {"number": 2}), ToolCall("meet", {"number": 3})]
    result = await turn(*calls, environment=Meeting())
    assert [message.content for message in result.observation.messages] == ["1", "2", "3"]
    environment = Meeting()
    await turn(*(ToolCall("in_turn", {"number": number}) for number in range(9)), environment=environment)
    assert environment.order == list(range(9))


async def test_a_tool_may_have_a_deadline_and_a_number_of_calls_of_its_own():
    environment = Meeting()
    environment.tool_timeout_s = 60.0
    late = await turn(ToolCall("impatient", {}), ToolCall("half", {"number": 3}), environment=environment)
    assert [message.content for message in late.observation.messages] == ["error: impatient took longer than 0.05 s", "1.5"]
    calls = [ToolCall("rare", {})] * 2
    first, second = [await environment.step(Action("", tuple(calls[:number]))) for number in (1, 2)]
    assert [message.content for message in (*first.observation.messages, *second.observation.messages)] == [
        "here",
        "here",
        "error: rare may be called 2 times in all, and no more",
    ]
    assert [record.outcome for record in second.calls] == [CallOutcome.OK, CallOutcome.ERROR]
    assert len((await turn(*calls, environment=Meeting())).calls) == 2


@pytest.mark.parametrize("wrong", [{"timeout_s": 0}, {"timeout_s": float("inf")}, {"max_calls": 0.5}, {"max_calls": True}])
def test_a_limit_that_makes_no_sense_is_refused_where_it_stands(wrong: dict[str, float]):
    with pytest.raises(ValueError, match=f"@tool\\({next(iter(wrong))}="):
        tool(**wrong)  # type: ignore[call-overload]


async def test_a_call_that_breaks_the_environment_does_so_once_the_others_have_ended():
    class Ending(Toolbox):
        ended = False

        @tool
        async def slow(self) -> str:
            await asyncio.sleep(0.01)
            self.ended = True
            return ""

    environment = Ending()
    with pytest.raises(EnvironmentBroken, match="the database is gone"):
        await turn(ToolCall("lose_the_world", {}), ToolCall("slow", {}), environment=environment)
    assert environment.ended
