"""Environments made of typed Python methods: the model calls them as tools, then answers, and the answer is rewarded.

A complete environment::

    class Dictionary(ToolEnvironment):
        system_prompt = "Translate the word. Look it up first."

        @tool
        async def look_up(self, word: str, language: Literal["de", "fr"] = "de") -> str:
            \"\"\"The translation of an English word.\"\"\"
            if word not in WORDS:
                raise ToolError(f"{word!r} is not in the dictionary")
            return WORDS[word][language]

        def reward(self, task: Task, answer: str) -> float:
            return float(answer.strip() == task.data["answer"])

What always holds: every call of a turn gets exactly one ``tool`` message, in the order of the calls; nothing that a tool does
breaks the episode (the model is told about it, and the step has a fault), while an exception from ``reset`` or ``reward`` does.
"""

import inspect
import math
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import msgspec

from asyncrl.core.chat_prompt import opening
from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.messages import CallOutcome, CallRecord, MalformedCall, Message, ToolCall, ToolSpec
from asyncrl.core.task import Task
from asyncrl.core.text import short, text_of, told
from asyncrl.core.trajectory import FINAL_REWARD
from asyncrl.core.users_error import UsersError, WrongResult
from asyncrl.envs.base import Action, Environment, Fault, Observation, StepResult
from asyncrl.envs.contained import Overdue, Raised, contained_within
from asyncrl.envs.signature import Parameters
from asyncrl.envs.threads import run_in_daemon_thread

Method = TypeVar("Method", bound=Callable[..., Any])
_MARK = "__asyncrl_tool__"


class ToolError(Exception):
    """Raised by a tool to tell the model what went wrong. It is an expected failure, so it is not logged."""


def tool(method: Method) -> Method:
    """Mark a method of a :class:`ToolEnvironment` as a tool that the model may call.

    The model is told the method's name, docstring and typed parameters; describe a parameter by
    ``Annotated[str, msgspec.Meta(description=...)]``. The method returns text, or anything that JSON can carry. An ``async``
    method runs in an asyncio task of its own, in the event loop of all episodes, and must not block the loop. A plain method
    runs in a thread of its own; if it misses its deadline, it is interrupted some seconds later, at its next Python instruction.
    """
    setattr(method, _MARK, True)
    return method


class Tool:
    """A marked method, ready to be described to the model and called.

    Raises:
        TypeError: the method's signature cannot be described; the message says why.
    """

    def __init__(self, name: str, method: Callable[..., Any]) -> None:
        self.name = name
        self.parameters = Parameters(method, name)
        self.spec = ToolSpec(name, inspect.getdoc(method) or "", self.parameters.schema)
        self.method = method

    async def __call__(self, environment: Environment, arguments: Mapping[str, Any]) -> str:
        """Run the tool on ``environment`` with ``arguments`` that :attr:`parameters` has converted."""
        bound = partial(self.method, environment, **arguments)
        if inspect.iscoroutinefunction(self.method):
            result = await bound()
        else:
            result = await run_in_daemon_thread(bound, name=f"tool-{self.name}")
        return result if isinstance(result, str) else msgspec.json.encode(result).decode()


def error_text(problem: object) -> str:
    """The text that the model reads when a call has failed."""
    return f"error: {problem}"


class _Answer(msgspec.Struct, frozen=True):
    """The text of a tool message, and the record of the call that it answers."""

    text: str
    record: CallRecord
    error: UsersError | None = None


_FAULTS = {
    CallOutcome.MALFORMED: Fault.MALFORMED_CALL,
    CallOutcome.ERROR: Fault.TOOL_ERROR,
    CallOutcome.TIMEOUT: Fault.TOOL_ERROR,
}


class ToolEnvironment(Environment):
    """The base class of environments made of tools: mark methods with :func:`tool`, and define :meth:`reward`.

    A turn with calls is answered with their results; a turn without calls is the final answer and ends the episode. The metrics
    of an episode are ``tool_calls`` (calls that reached a tool), ``tool_errors`` (calls that raised or timed out),
    ``malformed_calls`` (calls that reached no tool), and each named reward.

    Attributes:
        system_prompt: the system message before the task's prompt; none if empty.
        tool_timeout_s: deadline of one call in seconds; the recipe's ``environment.tool_timeout_s``.
        tools: the tools of the class by name.
        task: the task of the running episode, for tools that need it.
    """

    system_prompt: str = ""
    tool_timeout_s: float = 10.0
    tools: ClassVar[Mapping[str, Tool]] = {}
    task: Task

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        marked = {name: method for name, method in inspect.getmembers(cls, inspect.isfunction) if hasattr(method, _MARK)}
        try:
            cls.tools = {name: Tool(name, method) for name, method in marked.items()}
        except TypeError as error:
            raise TypeError(f"{cls.__name__}: tool {error}") from error

    @abstractmethod
    def reward(self, task: Task, answer: str) -> float | Mapping[str, float] | Awaitable[float | Mapping[str, float]]:
        """The reward of the final answer: a number, or several rewards by name, which are added up.

        The method may be ``async``. An exception means that the environment broke.
        """

    async def reset(self, task: Task) -> Observation:
        """Begin an episode, and return the system prompt, the task's prompt and the tools."""
        self.task = task
        return Observation(opening(self.system_prompt, task.prompt), tuple(tool.spec for tool in self.tools.values()))

    async def step(self, action: Action) -> StepResult:
        """Run the calls of the turn in order; without calls, reward the answer. The first fault is reported."""
        if not action.calls:
            reward = self.reward(self.task, action.content)
            value = await reward if inspect.isawaitable(reward) else reward
            named, total = self._rewards(value)
            counts = _count([])
            if taken := sorted(named.keys() & {FINAL_REWARD, *counts}):
                problem = f"returned a reward named {taken[0]!r}, which every episode already has; rename it"
                raise WrongResult(type(self).reward, problem)
            return StepResult(Observation(()), total, done=True, metrics=counts | named)
        answers = [await self._run(call) for call in action.calls]
        records = tuple(answer.record for answer in answers)
        return StepResult(
            Observation(tuple(Message("tool", answer.text) for answer in answers)),
            reward=0.0,
            done=False,
            metrics=_count(records),
            fault=next((_FAULTS[record.outcome] for record in records if record.outcome in _FAULTS), None),
            calls=records,
            errors=tuple(answer.error for answer in answers if answer.error is not None),
        )

    def _rewards(self, value: object) -> tuple[dict[str, float], float]:
        """Return the named rewards, if there are any, and their sum or the only reward."""
        try:
            named = {name: float(one) for name, one in value.items()} if isinstance(value, Mapping) else {}
            total = float(sum(named.values())) if isinstance(value, Mapping) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            total = math.nan
        if not math.isfinite(total):
            expected = "it must return a finite number, or a dictionary of finite numbers by name"
            raise WrongResult(type(self).reward, f"returned {short(value)}; {expected}")
        return named, total

    async def _run(self, call: ToolCall | MalformedCall) -> _Answer:
        if isinstance(call, MalformedCall):
            return self._malformed("", f"unreadable call: {call.problem}; use {self._usages()}")
        tool = self.tools.get(call.name)
        if tool is None:
            return self._malformed(call.name, f"no tool {call.name!r}; use {self._usages()}")
        try:
            arguments = tool.parameters.convert(call.arguments)
        except msgspec.ValidationError as error:
            return self._malformed(call.name, f"{error}; use {tool.parameters.usage}")
        name = f"tool {call.name} of {type(self).__name__}"
        began = time.perf_counter()
        result = await contained_within(self.tool_timeout_s, lambda: tool(self, arguments), name)
        seconds = time.perf_counter() - began
        if not isinstance(result, Raised):
            return _Answer(result, CallRecord(call.name, seconds, CallOutcome.OK))
        problem, expected = self._problem(call.name, result.error)
        outcome = CallOutcome.TIMEOUT if isinstance(result.error, Overdue) else CallOutcome.ERROR
        raised = None if expected else UsersError.of(result.error, tool.method)
        return _Answer(error_text(problem), CallRecord(call.name, seconds, outcome, problem), raised)

    def _problem(self, called: str, error: BaseException) -> tuple[str, bool]:
        """Return what the model is told about an error of a tool, and whether such an error was to be expected."""
        match error:
            case EnvironmentBroken():
                raise error
            case ToolError():
                return text_of(error), True
            case Overdue():
                return f"{called} took longer than {self.tool_timeout_s:g} s", True
            case _:
                return told(error), False

    def _malformed(self, called: str, problem: str) -> _Answer:
        return _Answer(error_text(problem), CallRecord(called, 0.0, CallOutcome.MALFORMED, problem))

    def _usages(self) -> str:
        return ", ".join(tool.parameters.usage for tool in self.tools.values()) or "no tool: there are none"


def _count(records: Sequence[CallRecord]) -> dict[str, float]:
    malformed = sum(record.outcome is CallOutcome.MALFORMED for record in records)
    failed = sum(record.outcome in (CallOutcome.ERROR, CallOutcome.TIMEOUT) for record in records)
    return {
        "tool_calls": float(len(records) - malformed),
        "tool_errors": float(failed),
        "malformed_calls": float(malformed),
    }
