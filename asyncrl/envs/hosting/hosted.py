"""Runs the calls of an environment in an asyncio task of their own, and turns its errors into ``EnvironmentBroken``.

What always holds:

* all calls of an environment run in one asyncio task, one after another, so that a context entered in ``reset`` can be
  left in ``close``, as anyio and libraries on top of it require. The exception is an environment that ignores its
  cancellation or cancels tasks that are not its own: its ``close`` runs in another task;
* only our own code cancels a caller: a ``CancelledError`` out of the environment means that the environment broke;
* an environment that changes its task's data changes them for itself alone: the other episodes of the group play the same task;
* ``EnvironmentLost`` and ``EnvironmentUnreachable`` are passed on: the environment did not break, what it stands on did;
* a caller that is cancelled waits at most :data:`CANCELLED_ENVIRONMENT_S` longer, even if the environment ignores this.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from asyncrl.core.deadline import deadline
from asyncrl.core.errors import DeadlineExceeded, EnvironmentBroken, EnvironmentLost, EnvironmentUnreachable
from asyncrl.core.plug_ins.users_error import UsersError
from asyncrl.core.task import Task
from asyncrl.envs.base import Action, Environment, Observation, StepResult
from asyncrl.envs.hosting.guarded_calls import Raised, contained, ended
from asyncrl.envs.hosting.workspaces import remove_after_episode
from asyncrl.envs.played_by_agent import AgentResult, Endpoint, PlayedByAgent

T = TypeVar("T")

CANCELLED_ENVIRONMENT_S = 3.0
"""Seconds that a cancelled call may take to end; more than its tools have, because the call waits for them."""


class HostedEnvironment:
    """Hosts one new environment for one episode."""

    def __init__(self, environment: Environment, task: Task) -> None:
        self._environment, self.task = environment, task.with_own_data()
        self._host = _Host(self._name)

    @property
    def scores_answers(self) -> bool:
        """Whether a turn without calls is the final answer, as the environment says. Known after :meth:`reset`."""
        return bool(self._environment.scores_answers)

    @property
    def _name(self) -> str:
        return f"{type(self._environment).__name__} of task {self.task.id}"

    async def ready(self) -> None:
        """Wait until the episode can begin. Like all calls, it only raises what :meth:`reset` raises."""
        if type(self._environment).ready is not Environment.ready:  # most environments need not wait for anything
            await self._call("ready", lambda: self._environment.ready())

    async def reset(self) -> Observation:
        """Begin the episode. Like all calls, it only raises ``EnvironmentBroken`` and errors of infrastructure."""
        return await self._call("reset", lambda: self._environment.reset(self.task))

    async def step(self, action: Action) -> StepResult:
        """Have the environment react to one turn."""
        return await self._call("step", lambda: self._environment.step(action))

    @property
    def agent(self) -> PlayedByAgent | None:
        """The environment, if an agent plays its episode; None if turns and steps do."""
        return self._environment if isinstance(self._environment, PlayedByAgent) else None

    async def play(self, endpoint: Endpoint, limited: "asyncio.Future[Any]", lacks_room: Callable[[], bool]) -> AgentResult:
        """Have an agent play the episode; see :meth:`asyncrl.envs.played_by_agent.PlayedByAgent.play`."""
        agent = self.agent
        if agent is None:
            raise TypeError(f"{self._name} is played by turns, and by no agent")
        return await self._call("play", lambda: agent.play(endpoint, limited, lacks_room))

    async def close(self, seconds: float) -> None:
        """Close the environment within ``seconds``, and remove its folder. A call that ignored its cancellation may still run."""
        where = f"{type(self._environment).__name__}.close"
        remedy = "raise environment.tool_timeout_s"
        try:
            async with deadline(seconds, waiter=f"task {self.task.id}", owner=where, remedy=remedy):
                await self._call("close", lambda: self._environment.close())
        except DeadlineExceeded as late:
            raise self._broken("close", late)  # noqa: B904 - its cause is set there
        finally:
            self._host.end()
            workspace = self._environment.provided.workspace
            if workspace is not None and "workspace" in vars(self._environment):  # it was asked for, so it was made
                await remove_after_episode(workspace)

    @contextmanager
    def blamed(self, method: str) -> Iterator[None]:
        """Raise ``EnvironmentBroken`` for ``method`` if the enclosed code raises, unless this task was cancelled."""
        try:
            yield
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            raise self._broken(method, error)  # noqa: B904 - its cause is set there

    async def _call(self, method: str, call: Callable[[], Awaitable[T]]) -> T:
        if self._host.task.done() or self._host.lost:
            self._host.end()  # else it would wait for calls for ever, if the call that was lost ends after all
            self._host = _Host(self._name)
        answer = self._host.ask(call)
        either: set[asyncio.Future[Any]] = {answer, self._host.task}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._host.cancel(answer, f"{type(self._environment).__name__}.{method} (task {self.task.id})")
            raise
        outcome = answer.result() if answer.done() else Raised(asyncio.CancelledError())
        if isinstance(outcome, Raised):
            if isinstance(outcome.error, EnvironmentLost | EnvironmentUnreachable):
                raise outcome.error
            raise self._broken(method, outcome.error)
        return outcome

    def _broken(self, method: str, error: BaseException) -> EnvironmentBroken:
        secrets = self._environment.provided.secrets
        raised = secrets.cleaned(UsersError.of(error, getattr(type(self._environment), method, None)))
        if isinstance(error, EnvironmentBroken):
            # The user's own class may not have called our constructor.
            error.raised = getattr(error, "raised", None) or raised
            error.problem = secrets.clean(getattr(error, "problem", str(error)))
            error.args = (error.problem,)
            return error
        name = f"{type(self._environment).__name__}.{raised.method or method}"
        broken = EnvironmentBroken(f"task {self.task.id}: {name} {raised.problem}{raised.where}", raised)
        broken.__cause__ = error
        return broken


def make_hosted(make_environment: Callable[[Task], Environment], task: Task) -> HostedEnvironment:
    """Make a new environment for one episode of ``task``.

    Raises:
        EnvironmentBroken: its constructor raised, or the task names none.
    """
    try:
        return HostedEnvironment(make_environment(task), task)
    except EnvironmentBroken:
        raise
    except BaseException as error:
        raise not_made(task, UsersError.of(error)) from error


def not_made(task: Task, raised: UsersError) -> EnvironmentBroken:
    """Return the error of an environment whose constructor raised."""
    problem = f"the environment could not be made: {raised.problem.removeprefix('raised ')}{raised.where}"
    return EnvironmentBroken(f"task {task.id}: {problem}", raised)


class _Host:
    """Runs the calls of one environment in one asyncio task.

    Attributes:
        task: the task; it ends after :meth:`end`, or when other code cancels it between two calls.
        lost: a call was cancelled but is still running.
    """

    def __init__(self, name: str) -> None:
        self._calls: asyncio.Queue[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]] | None] = asyncio.Queue()
        self._running: asyncio.Future[Any] | None = None
        self.lost = False
        self.task = asyncio.create_task(self._run(), name=name)

    def ask(self, call: Callable[[], Awaitable[T]]) -> "asyncio.Future[T | Raised]":
        """Queue ``call``, and return a future of its result, or of ``Raised`` if it raises."""
        answer: asyncio.Future[T | Raised] = asyncio.get_running_loop().create_future()
        self._calls.put_nowait((call, answer))
        return answer

    async def cancel(self, answer: "asyncio.Future[Any]", name: str) -> None:
        """Cancel the call of ``answer``, and wait at most :data:`CANCELLED_ENVIRONMENT_S` for its end."""
        if answer is not self._running:  # it has not begun, or it has ended
            answer.cancel()
            return
        self.lost = True  # unless it ends before we stop waiting for it
        self.task.cancel()
        self.lost = not await ended({answer, self.task}, CANCELLED_ENVIRONMENT_S, name)

    def end(self) -> None:
        """End the task after the calls queued so far; later calls do not run."""
        self._calls.put_nowait(None)

    async def _run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while (asked := await self._calls.get()) is not None:
            call, answer = asked
            if answer.cancelled():
                continue
            self._running = answer
            outcome = await contained(call)
            self._running = None
            while task.cancelling():  # only this call was to be cancelled: start the next one afresh
                task.uncancel()
            if not answer.done():
                answer.set_result(outcome)
