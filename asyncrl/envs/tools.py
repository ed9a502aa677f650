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

What always holds: the calls of a turn run side by side; every call gets exactly one ``tool`` message, in the order of the calls;
nothing that a tool does breaks the episode (the model is told about it, and the step has a fault), while an exception from
``reset`` or ``reward`` does.
"""

import asyncio
import inspect
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import msgspec

from asyncrl.core.chat_prompt import opening
from asyncrl.core.episode import FINAL_REWARD
from asyncrl.core.errors import EnvironmentBroken, EnvironmentLost, EnvironmentUnreachable
from asyncrl.core.messages import CallOutcome, CallRecord, MalformedCall, Message, ToolCall, ToolSpec
from asyncrl.core.plug_ins.users_error import UsersError, WrongResult
from asyncrl.core.task import Task
from asyncrl.core.text import describe_error, pluralize, short, text_of
from asyncrl.envs.base import Action, Environment, Fault, Observation, StepResult
from asyncrl.envs.call_usage import choices
from asyncrl.envs.hosting.guarded_calls import Overdue, Raised, contained, contained_within
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from asyncrl.envs.hosting.tool_messages import Answered, Load, Refused, ToolError
from asyncrl.envs.hosting.tool_processes import ProcessEnded, ToolProcesses
from asyncrl.envs.returned_reward import returned_reward
from asyncrl.envs.signature import Parameters, SchemaParameters, finite
from asyncrl.envs.tool_marks import REPLACED_TOOLS, MarkedMethod, Marks, marked_methods, refuse_on_instance
from asyncrl.envs.tool_results import Pending, is_pending, settled, text_of_result

_CALLS, _PROCESSES = "__asyncrl_calls__", "_asyncrl_processes"
AT_ONCE = 16
"""The most calls of one turn that run at the same time."""


class Tool:
    """A marked method, ready to be described to the model and called.

    Attributes:
        marks: what ``@tool`` says of it.

    Raises:
        TypeError: the method's signature cannot be described, or it needs ``self`` where there is none; the message says why.
    """

    def __init__(self, marked: MarkedMethod) -> None:
        self.name, self.method, self.marks, self._is_static = marked
        if self.marks.process and not self._is_static:
            problem = "runs in another process, where there is no `self`"
            raise TypeError(f"{self.name}: process=True {problem}; make it a @staticmethod that gets all it needs from the model")
        if not self._is_static:
            _require_self(self.method, self.name)
        self.parameters = Parameters(self.method, self.name, self._is_static)
        self.spec = ToolSpec(self.name, inspect.getdoc(self.method) or "", self.parameters.schema)

    async def converted(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check ``arguments`` and fill in defaults.

        Raises:
            msgspec.ValidationError: they do not fit; the message says why.
        """
        return self.parameters.convert(arguments)

    async def __call__(self, environment: Environment, arguments: Mapping[str, Any]) -> str:
        """Run the tool on ``environment`` with ``arguments`` that were :meth:`converted`."""
        bound = partial(self.method, **arguments) if self._is_static else partial(self.method, environment, **arguments)
        if inspect.iscoroutinefunction(self.method) or inspect.isasyncgenfunction(self.method):
            return text_of_result(self.method, await settled(bound()))
        return await self._in_thread(bound)

    async def _in_thread(self, bound: Callable[[], object]) -> str:
        """Call a plain method in a thread. It may be a decorator above an ``async`` one, and then gives something to wait for."""

        def call() -> str | Pending:
            returned = bound()
            return Pending(returned) if is_pending(returned) else text_of_result(self.method, returned)

        returned = await run_in_daemon_thread(call, name=f"tool-{self.name}")
        if isinstance(returned, Pending):
            return text_of_result(self.method, await settled(returned.returned))
        return returned


class DescribedTool(Tool):
    """A tool that a task describes and the class does not have: :meth:`ToolEnvironment.run_described` answers its calls."""

    def __init__(self, spec: ToolSpec) -> None:
        self.name, self.spec, self.marks = spec.name, spec, Marks()
        self.method, self.parameters = ToolEnvironment.run_described, SchemaParameters(spec)

    async def __call__(self, environment: Environment, arguments: Mapping[str, Any]) -> str:
        """Have the environment answer."""
        assert isinstance(environment, ToolEnvironment)
        return text_of_result(self.method, await environment.run_described(self.name, arguments))


def _require_self(method: Callable[..., Any], name: str) -> None:
    """Refuse a method without ``self``: its first parameter would be hidden from the model, and get the environment.

    Raises:
        TypeError: the method has no parameter, or its first one is neither ``self`` nor an untyped one marked as unused (``_``).
    """
    first = next(iter(inspect.signature(method).parameters.values()), None)
    if first is not None and (first.name == "self" or (first.name.startswith("_") and first.annotation is first.empty)):
        return
    if first is None or first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise TypeError(f"{name}: its first parameter must be `self`; write it, or make the tool a @staticmethod")


def error_text(problem: object) -> str:
    """The text that the model reads when a call has failed."""
    return f"error: {problem}"


class _Answer(msgspec.Struct, frozen=True):
    """The text of a tool message, and the record of the call that it answers."""

    text: str
    record: CallRecord
    error: UsersError | None = None


class _Ready(msgspec.Struct, frozen=True):
    """A call that fits its tool. A tool in a process of its own gets the arguments as the model wrote them."""

    tool: Tool
    arguments: Mapping[str, Any]


_FAULTS = {
    CallOutcome.MALFORMED: Fault.MALFORMED_CALL,
    CallOutcome.ERROR: Fault.TOOL_ERROR,
    CallOutcome.TIMEOUT: Fault.TOOL_ERROR,
}


class ToolEnvironment(Environment):
    """The base class of environments made of tools: mark methods with ``@tool``, and define :meth:`reward`.

    A turn with calls is answered with their results; a turn without calls is the final answer and ends the episode. The metrics
    of an episode are ``tool_calls`` (calls that reached a tool), ``tool_errors`` (calls that raised or timed out),
    ``malformed_calls`` (calls that reached no tool), and each named reward.

    Attributes:
        system_prompt: the system message before the task's prompt; none if empty.
        tool_timeout_s: deadline of one call in seconds; the recipe's ``environment.tool_timeout_s``.
        tools: the tools of the class by name.
        task: the task of the running episode, for tools that need it.
        scores_answers: see :class:`~asyncrl.envs.base.Environment`; a subclass whose ``step`` answers turns without calls sets it
            to False.
    """

    scores_answers = True
    system_prompt: str = ""
    tool_timeout_s: float = 10.0
    tools: ClassVar[Mapping[str, Tool]] = {}
    _asyncrl_tools: ClassVar[Mapping[str, Tool]] = tools  # under a name that no subclass has
    task: Task

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Also what is only annotated, such as `task`.
        reserved = {*dir(ToolEnvironment), *ToolEnvironment.__annotations__}
        try:
            marked = {marked.name: Tool(marked) for marked in marked_methods(cls, reserved)}
        except TypeError as error:
            raise TypeError(f"{cls.__name__}: tool {error}") from error
        if "tools" in vars(cls) and cls.tools is not cls._asyncrl_tools:  # a class that is made anew has both, as with slots
            raise TypeError(f"{cls.__name__} defines `tools`, {REPLACED_TOOLS}")
        cls.tools = cls._asyncrl_tools = marked

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; refuses a tool, as an episode has those of its class."""
        refuse_on_instance(self, name, value, self._asyncrl_tools)
        super().__setattr__(name, value)

    @abstractmethod
    def reward(self, task: Task, answer: str) -> float | Mapping[str, float] | Awaitable[float | Mapping[str, float]]:
        """The reward of the final answer: a number, or several rewards by name, which are added up.

        The method may be ``async``. An exception means that the environment broke. Its time is not the policy's: it has
        ``environment.episode_timeout_s`` to itself, and if it takes longer, the attempt fails.
        """

    def turn_reward(
        self, action: Action, calls: Sequence[CallRecord]
    ) -> float | Mapping[str, float] | Awaitable[float | Mapping[str, float]]:
        """The reward of a turn with calls, as :meth:`reward` returns it; 0 unless a subclass says otherwise.

        Its time is time of the episode. An episode's reward is the sum over its turns. Whether a turn is credited with its own
        reward or with all later ones, ``algorithm.credit`` says.

        Args:
            action: the turn.
            calls: what became of its calls, in their order.
        """
        return 0.0

    async def run_described(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Answer a call of a tool that the task describes (``task.tools``) and the class does not have.

        Raises:
            ToolError: the model is told of it, as with other tools.
        """
        raise NotImplementedError

    async def reset(self, task: Task) -> Observation:
        """Begin an episode, and return the system prompt, the task's prompt and the tools: the class's, and those of the task.

        A tool of the task that has the name of one of the class is that one, described as the task does.
        """
        self.task = task
        own = {name: tool for name, tool in self.tools.items() if not isinstance(tool, DescribedTool)}
        shown = {name: tool.spec for name, tool in own.items()} | {spec.name: spec for spec in task.tools}
        if task.tools or len(own) < len(self.tools):
            self.tools = own | self._described(task, own)  # type: ignore[misc]
        return Observation(opening(self.system_prompt, task.prompt), tuple(shown.values()))

    def _described(self, task: Task, own: Mapping[str, Tool]) -> dict[str, Tool]:
        """Return the task's tools that the environment does not have of its ``own``."""
        further: dict[str, Tool] = {spec.name: DescribedTool(spec) for spec in task.tools if spec.name not in own}
        answers = (type(self).run_described, type(self).step) != (ToolEnvironment.run_described, ToolEnvironment.step)
        if further and not answers:
            problem = f"task {task.id} describes tool {next(iter(further))!r}, which {type(self).__name__} does not have"
            raise EnvironmentBroken(f"{problem}; mark a method of that name with @tool, or define run_described(name, arguments)")
        return further

    async def step(self, action: Action) -> StepResult:
        """Run the calls of the turn side by side; without calls, reward the answer. The first fault is reported."""
        if not action.calls:
            named, total = await self._rewards(type(self).reward, self.reward(self.task, action.content))
            return StepResult(Observation(()), total, done=True, metrics=_count([]) | named, rewards=named)
        answers = await self._run_all([await self._begin(call) for call in action.calls])
        records = tuple(answer.record for answer in answers)
        named, total = await self._rewards(type(self).turn_reward, self.turn_reward(action, records))
        return StepResult(
            Observation(tuple(Message("tool", answer.text) for answer in answers)),
            reward=total,
            done=False,
            metrics=_count(records) | named,
            fault=next((_FAULTS[record.outcome] for record in records if record.outcome in _FAULTS), None),
            calls=records,
            errors=tuple(answer.error for answer in answers if answer.error is not None),
            rewards=named,
        )

    async def close(self) -> None:
        """End the process that tools were run in outside a run."""
        if self.provided.processes is None and _PROCESSES in self.__dict__:
            self._asyncrl_processes.close()

    @cached_property
    def _asyncrl_processes(self) -> ToolProcesses:  # under a name that no subclass has
        """The worker's processes for tools; outside a run, one of the environment's own."""
        return self.provided.processes or ToolProcesses(type(self).__name__, most=1)

    async def _rewards(self, method: Callable[..., Any], returned: object) -> tuple[dict[str, float], float]:
        """Return the named rewards that ``method`` returned, if there are any, and their sum or the only reward."""
        named, total = await returned_reward(method, returned)
        if taken := sorted(named.keys() & {FINAL_REWARD, *_count([])}):
            problem = f"returned a reward named {taken[0]!r}, which every episode already has; rename it"
            raise WrongResult(method, problem)
        return named, total

    async def _run_all(self, calls: "Sequence[_Answer | _Ready]") -> list[_Answer]:
        """Answer the calls of a turn in their order. If one breaks the environment, the others are still waited for."""
        if len(calls) == 1:
            return [await self._run(calls[0])]
        room = asyncio.Semaphore(AT_ONCE)

        async def run(call: _Answer | _Ready) -> _Answer:
            async with room:
                return await self._run(call)

        async with asyncio.TaskGroup() as group:
            running = [group.create_task(contained(partial(run, call))) for call in calls]
        answers = [each.result() for each in running]
        for answer in answers:
            if isinstance(answer, Raised):
                raise answer.error
        return [answer for answer in answers if not isinstance(answer, Raised)]

    async def _begin(self, call: ToolCall | MalformedCall) -> "_Answer | _Ready":
        """Return what is to be run for a call, or the answer to a call that reaches no tool."""
        if isinstance(call, MalformedCall):
            return self._malformed("", f"unreadable call: {call.problem}; use {self._choices('')}")
        tool = self.tools.get(call.name)
        if tool is None:
            return self._malformed(call.name, f"no tool {short(call.name)}; use {self._choices(call.name)}")
        try:
            arguments = await tool.converted(finite(call.arguments))
        except msgspec.ValidationError as error:
            return self._malformed(call.name, f"{error}; use {tool.parameters.usage}")
        most = tool.marks.max_calls
        if most is not None and self._count_call(tool.name) > most:
            problem = f"{tool.name} may be called {pluralize(most, 'time')} in all, and no more"
            return _Answer(error_text(problem), CallRecord(tool.name, 0.0, CallOutcome.ERROR, problem))
        return _Ready(tool, call.arguments if tool.marks.process else arguments)

    def _count_call(self, name: str) -> int:
        """Count a call of a tool, and return how many there were in this episode."""
        # Set here, because a subclass need not call our constructor or our reset.
        calls: Counter[str] = self.__dict__.setdefault(_CALLS, Counter())
        calls[name] += 1
        return calls[name]

    async def _run(self, call: "_Answer | _Ready") -> _Answer:
        if isinstance(call, _Answer):
            return call
        tool = call.tool
        timeout_s = tool.marks.timeout_s or self.tool_timeout_s
        name = f"tool {tool.name} of {type(self).__name__}"
        began = time.perf_counter()
        result: str | UsersError | Raised
        if tool.marks.process:
            result = await contained(partial(self._run_in_process, tool, call.arguments, timeout_s))
        else:
            result = await contained_within(timeout_s, partial(tool, self, call.arguments), name)
        seconds = time.perf_counter() - began
        if isinstance(result, str):
            return _Answer(result, CallRecord(tool.name, seconds, CallOutcome.OK))
        raised: UsersError | None
        if isinstance(result, UsersError):
            raised = cleaned = self.provided.secrets.cleaned(result)
            problem, outcome = cleaned.problem.removeprefix("raised "), CallOutcome.ERROR
        else:
            problem, expected = self._problem(tool.name, result.error, timeout_s)
            outcome = CallOutcome.TIMEOUT if isinstance(result.error, Overdue) else CallOutcome.ERROR
            raised = None if expected else self.provided.secrets.cleaned(UsersError.of(result.error, tool.method))
        return _Answer(error_text(problem), CallRecord(tool.name, seconds, outcome, problem), raised)

    async def _run_in_process(self, tool: Tool, arguments: Mapping[str, Any], timeout_s: float) -> str | UsersError:
        of = Load(type(self).__module__, type(self).__qualname__)
        answer = await self._asyncrl_processes.call(of, tool.name, arguments, timeout_s)
        if isinstance(answer, Refused):
            raise ToolError(answer.problem)
        return answer.text if isinstance(answer, Answered) else answer.error

    def _problem(self, called: str, error: BaseException, timeout_s: float) -> tuple[str, bool]:
        """Return what the model is told about an error of a tool, and whether such an error was to be expected."""
        match error:
            case EnvironmentBroken() | EnvironmentLost() | EnvironmentUnreachable():
                raise error
            case ToolError():
                return self.provided.secrets.clean(text_of(error)), True
            case Overdue():
                return f"{called} took longer than {timeout_s:g} s", True
            case ProcessEnded():
                return f"{called} failed: {error}", True
            case _:
                return self.provided.secrets.clean(describe_error(error)), False

    def _malformed(self, called: str, problem: str) -> _Answer:
        return _Answer(error_text(problem), CallRecord(called, 0.0, CallOutcome.MALFORMED, problem))

    def _choices(self, called: str) -> str:
        return choices(called, {name: tool.parameters.usage for name, tool in self.tools.items()})


def _count(records: Sequence[CallRecord]) -> dict[str, float]:
    malformed = sum(record.outcome is CallOutcome.MALFORMED for record in records)
    failed = sum(record.outcome in (CallOutcome.ERROR, CallOutcome.TIMEOUT) for record in records)
    return {
        "tool_calls": float(len(records) - malformed),
        "tool_errors": float(failed),
        "malformed_calls": float(malformed),
    }
