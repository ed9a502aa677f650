"""Environments of verifiers: ``asyncrl env serve NAME --from verifiers``, of the hub or of one's own, once they are installed.

The environment plays its own rollouts, as its authors wrote them; what it asks of a model is the next observation, and the turn
that is played the model's answer. Rewards and metrics arrive by the names that its rubric gives them. Both generations of the
library are known: environments that a module's ``load_environment`` makes, and tasksets of ``verifiers.v1``.
"""

import asyncio
import importlib
import random
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import msgspec
import verifiers

from asyncrl.core.errors import EnvironmentBroken, RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.messages import CallOutcome, CallRecord, MalformedCall, Message, ToolCall
from asyncrl.core.task import Task
from asyncrl.core.text import short
from asyncrl.envs.base import Action, Environment, Fault, Observation, StepResult
from asyncrl.envs.other_projects.playing import numbers
from asyncrl.envs.other_projects.policy_endpoint import POLICY, Endpoint, Line
from asyncrl.envs.other_projects.verifiers_code import Heard, hear_tools, heard, heard_function, rubrics

T = TypeVar("T")

CONNECT_S = 300.0
"""Seconds in which a rollout's client reaches the endpoint beside it. The library makes one for each rollout, which takes tens of
milliseconds of the event loop, so that a hundred at once pass the 5 s that it waits by default."""
BEGINNING = 8
"""The most rollouts that begin at once. To begin one takes up to a second of the event loop in ``verifiers.v1``, so a hundred
would block it for a minute, and a server that is blocked for so long ends."""
HELD_OUT = 8
"""One of so many tasks of an environment without held-out ones of its own is for evaluation."""
CLOSE_S = 5.0
_FAULTS = {CallOutcome.ERROR: Fault.TOOL_ERROR, CallOutcome.MALFORMED: Fault.MALFORMED_CALL}


class Scored:
    """How a rollout ended: its reward, the parts of it that have names, and metrics."""

    def __init__(self, reward: float, rewards: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        self.reward, self.rewards, self.metrics = reward, dict(rewards), dict(metrics)


class Rollouts(Protocol):
    """The rollouts of one environment, in either generation of the library."""

    def tasks(self, split: str, count: int, seed: int) -> list[Task]:
        """Make tasks."""
        ...

    async def play(self, task: Task, url: str, of: Heard) -> Scored:
        """Play a rollout with the model behind ``url``, and hear of its code what the library lets us."""
        ...


class Verifiers(Environment):
    """An environment of verifiers.

    Args:
        name: of its module, or of its taskset for ``verifiers.v1``.
        arguments: what ``load_environment`` gets; for ``verifiers.v1`` the configuration of the environment.
    """

    def __init__(self, name: str, arguments: dict[str, Any] = {}) -> None:  # noqa: B006 - never changed
        self._line: Line | None = None
        self._playing: asyncio.Task[Scored] | None = None
        self._heard = Heard()

    @classmethod
    @asynccontextmanager
    async def share(cls, name: str, arguments: dict[str, Any]) -> AsyncIterator[tuple[Rollouts, Endpoint, asyncio.Semaphore]]:  # type: ignore[override]
        """Load the environment, and listen to what it asks."""
        endpoint = Endpoint()
        await endpoint.start()
        try:
            async with _loaded(name, arguments).serving() as rollouts:
                yield rollouts, endpoint, asyncio.Semaphore(BEGINNING)
        finally:
            await endpoint.close()

    @classmethod
    def make_tasks(cls, split: str, count: int, seed: int, **options: Any) -> Sequence[Task]:
        """Make tasks of the environment's own rows."""
        return _loaded(options["name"], options.get("arguments", {})).tasks(split, count, seed)

    async def reset(self, task: Task) -> Observation:
        """Begin a rollout; the observation is what it asks first."""
        rollouts, endpoint, beginning = self.shared
        if "row" not in task.data:
            raise EnvironmentBroken(
                f"task {short(task.id)} is no row of the environment's own; leave out tasks.kind, or name none"
            )
        self._line = endpoint.open()
        async with beginning:
            rollout = rollouts.play(task, self._line.url, self._heard)
            self._playing = asyncio.create_task(rollout, name=f"rollout {task.id}")
            asked = await self._asked()
        if isinstance(asked, Scored):
            raise EnvironmentBroken(f"the rollout of {task.id} ended before it asked the model anything")
        return Observation(asked, self._line.tools)

    async def step(self, action: Action) -> StepResult:
        """Answer what the rollout asked, and wait for what it asks next, or for its end."""
        assert self._line is not None
        known = {tool.name for tool in self._line.tools}
        wrong = {n: _problem(call, known) for n, call in enumerate(action.calls)}
        if any(wrong.values()):
            told = tuple(Message("tool", f"error: {wrong[n] or 'not run, because another call is wrong'}") for n in wrong)
            records = tuple(
                CallRecord(getattr(call, "name", ""), 0.0, CallOutcome.MALFORMED, wrong[n] or "not run")
                for n, call in enumerate(action.calls)
            )
            return StepResult(Observation(told), 0.0, False, fault=Fault.MALFORMED_CALL, calls=records)
        calls = [call for call in self._line.answer(action).calls if isinstance(call, ToolCall)]
        asked = await self._asked()
        ran = tuple(self._heard.calls.get(call.id) or CallRecord(call.name, 0.0, CallOutcome.OK) for call in calls)
        fault = next((_FAULTS[record.outcome] for record in ran if record.outcome in _FAULTS), None)
        if isinstance(asked, Scored):
            ended, metrics = (
                Observation(tuple(Message("tool", "The episode is over.") for _ in calls)),
                asked.metrics | asked.rewards,
            )
            return StepResult(ended, asked.reward, True, metrics, fault, ran, self._heard.drained(), asked.rewards)
        return StepResult(Observation(asked), 0.0, False, {}, fault, ran, self._heard.drained())

    async def close(self) -> None:
        """End the rollout."""
        if self._line is not None:
            self.shared[1].hang_up(self._line)
        if self._playing is not None and not self._playing.done():
            self._playing.cancel()
            await asyncio.wait([self._playing], timeout=CLOSE_S)

    async def _asked(self) -> tuple[Message, ...] | Scored:
        """Wait until the rollout asks the model, or ends."""
        assert self._line is not None
        assert self._playing is not None
        request = asyncio.create_task(self._line.request())
        try:
            await asyncio.wait([request, self._playing], return_when=asyncio.FIRST_COMPLETED)
            return request.result() if request.done() else self._playing.result()
        finally:
            request.cancel()


class _Loaded:
    """An environment that a module's ``load_environment`` makes."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        self._environment: Any = verifiers.load_environment(name, **arguments)
        self._name = name
        if not self._environment.score_rollouts:
            problem = f"{name!r} leaves its rollouts unscored (score_rollouts)"
            raise RecipeError("environment.options.name", problem, "have it score them")
        hear_tools(self._environment)
        for rubric in {id(each): each for each in rubrics(self._environment.rubric)}.values():  # some share one
            if not rubric.funcs and type(rubric).score_rollout is verifiers.Rubric.score_rollout:
                problem = f"{name!r} has no rubric, or one without functions, so that its rollouts would have no rewards"
                raise RecipeError("environment.options.name", problem, "give it a rubric with a function of one rollout")
            if rubric.has_group_rewards:
                problem = f"the rubric of {name!r} scores the rollouts of a task together, and here each is scored alone"
                raise RecipeError("environment.options.name", problem, "give its rubric functions of one rollout only")
            rubric.funcs = [heard_function(function) for function in rubric.funcs]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["_Loaded"]:
        yield self

    def tasks(self, split: str, count: int, seed: int) -> list[Task]:
        held_out = self._environment.get_eval_dataset()  # the rows for training, where it has no others
        own = self._environment.eval_dataset is not None  # known now: some environments make it when it is asked for
        try:
            rows = self._environment.get_dataset() if split == "train" else held_out
        except ValueError as error:
            problem = f"{self._name!r} has no rows for training: {error}"
            raise RecipeError("environment.options.name", problem, "give it a `dataset`, or name another one") from error
        chosen = [n for n in range(len(rows)) if own or _is_held_out(n) == (split == "evaluation")]
        return [self._task(split, n, rows[n]) for n in _some(chosen, count, seed)]

    def _task(self, split: str, number: int, row: dict[str, Any]) -> Task:
        prompt = row.get("prompt") or ""
        text = prompt if isinstance(prompt, str) else next((str(each["content"]) for each in reversed(prompt)), "")
        return Task(id=TaskId(f"{self._name}-{split}-{number}"), prompt=text or self._name, data={"split": split, "row": number})

    async def play(self, task: Task, url: str, of: Heard) -> Scored:
        from verifiers.clients import resolve_client
        from verifiers.types import ClientConfig

        split, number = task.data["split"], task.data["row"]
        rows = self._environment.get_dataset() if split == "train" else self._environment.get_eval_dataset()
        row = {"example_id": number, **rows[number]}
        heard.set(of)
        config = ClientConfig(api_base_url=url, api_key_var="ASYNCRL_NO_KEY", max_retries=0, connect_timeout=CONNECT_S)
        client = resolve_client(config)
        try:
            output = dict(await self._environment.run_rollout(row, client, POLICY, self._environment.sampling_args))
        finally:
            await client.close()  # which the library leaves to the garbage collector, with its connections
        if error := output.get("error"):
            raise EnvironmentBroken(f"the rollout of {task.id} failed: {short(error)}")
        reward, metrics = output.get("reward"), numbers(output.get("metrics") or {})
        if reward is None:
            raise _not_scored(task, "its reward is None")
        return Scored(float(reward), {}, metrics)


class _Taskset:
    """A taskset of ``verifiers.v1`` with its environment. A program of its own plays, by default one that only talks."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        loaders = importlib.import_module("verifiers.v1.utils.loaders")
        self._v1: Any = importlib.import_module("verifiers.v1")
        seat = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
        given = {"agent": seat, **arguments, "taskset": {"id": name, **arguments.get("taskset", {})}}
        kind = loaders.environment_class(name, given.get("id", ""))
        config: Any = importlib.import_module("verifiers.v1.utils.generic").concrete_type(
            kind, self._v1.EnvConfig, origin=self._v1.Env
        )
        self._environment = kind((config or self._v1.EnvConfig).model_validate(given))
        self._name, self._rows = name, dict[int, Any]()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["_Taskset"]:
        async with self._environment.serving():
            yield self

    def tasks(self, split: str, count: int, seed: int) -> list[Task]:
        found = []
        for task in self._environment.taskset:
            if _is_held_out(task.data.idx) == (split == "evaluation"):
                text = task.data.prompt_text or self._name
                found.append(Task(id=TaskId(f"{self._name}-{task.data.idx}"), prompt=text, data={"row": task.data.idx}))
            if not self._environment.taskset.bounded and len(found) == count:
                break
        return _some(found, count, seed)

    async def play(self, task: Task, url: str, of: Heard) -> Scored:
        number = task.data["row"]
        if number not in self._rows:
            self._rows[number] = next(each for each in self._environment.taskset if each.data.idx == number)
        client = self._v1.EvalClientConfig(base_url=url, api_key_var="ASYNCRL_NO_KEY")
        episode = await self._environment.run_episode(self._rows[number], self._v1.ModelContext(model=POLICY, client=client))
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors:
            raise EnvironmentBroken(f"the rollout of {task.id} failed: {errors[0].type}: {short(errors[0].message)}")
        scored = [pair for trace in episode.traces for pair in trace.rewards.items()]
        if not scored:
            raise _not_scored(task, "it has no reward")
        if without := next((name for name, each in scored if each is None), ""):
            raise _not_scored(task, f"its reward {without!r} is None")
        rewards = {name: each.value for name, each in scored}
        metrics = {name: value for trace in episode.traces for name, value in trace.metrics.items() if value is not None}
        return Scored(sum(trace.reward for trace in episode.traces), rewards, metrics)


_environments: dict[bytes, "_Loaded | _Taskset"] = {}
"""The environments of this process, by name and arguments: loading one takes seconds."""


def prepare(name: str, arguments: dict[str, Any] | None = None) -> None:
    """Load an environment. To be called in the main thread first, as some set handlers of signals, which only that one may.

    Raises:
        RecipeError: there is none of this name.
    """
    _loaded(name, arguments or {})


def _loaded(name: str, arguments: dict[str, Any]) -> "_Loaded | _Taskset":
    """Return an environment, which is loaded once.

    Raises:
        RecipeError: there is none of this name.
    """
    key = msgspec.json.encode((name, arguments), order="deterministic")
    if key not in _environments:
        _environments[key] = _load(name, arguments)
    return _environments[key]


def _load(name: str, arguments: dict[str, Any]) -> "_Loaded | _Taskset":
    try:
        return _Loaded(name, arguments) if hasattr(verifiers, "load_environment") else _Taskset(name, arguments)
    except (ImportError, AttributeError, ValueError, TypeError, RuntimeError) as error:
        problem = f"verifiers cannot load {name!r}: {error}"
        remedy = "install its package here, or set PYTHONPATH to the folder of its module; its README tells its arguments"
        raise RecipeError("environment.options.name", problem, remedy) from error


def _not_scored(task: Task, why: str) -> EnvironmentBroken:
    return EnvironmentBroken(f"the rollout of {task.id} was not scored: {why}; see that its environment scores each rollout")


def _is_held_out(number: int) -> bool:
    return zlib.crc32(b"%d" % number) % HELD_OUT == 0


def _some(rows: Sequence[T], count: int, seed: int) -> list[T]:
    """Return ``count`` of the rows in an order that follows from the seed; all of them if there are no more."""
    return random.Random(seed).sample(rows, min(count, len(rows)))


def _problem(call: ToolCall | MalformedCall, known: set[str]) -> str:
    if isinstance(call, MalformedCall):
        return call.problem
    return (
        "" if call.name in known else f"there is no tool {call.name!r}" + (f", only {', '.join(sorted(known))}" if known else "")
    )
