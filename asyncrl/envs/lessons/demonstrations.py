"""Demonstrations: scripts of lessons, played in the real environment.

What always holds: everything that the model does not say in a demonstration, from the system prompt to the tools' results, is
what the environment said. Tools may fail by chance, so a demonstration that is spoilt by one is played again.
"""

import asyncio
import os
from collections.abc import Callable, Sequence

import msgspec

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.messages import Message, ToolCall, ToolSpec
from asyncrl.core.recipe.environment import MemberConfig
from asyncrl.core.task import Task
from asyncrl.core.text import short
from asyncrl.envs.base import Action, Environment, Fault
from asyncrl.envs.hosting.worker_environments import WorkerEnvironments
from asyncrl.envs.lessons.base import Script
from asyncrl.envs.load import load_member
from asyncrl.envs.secrets import read_secrets

AT_ONCE = 32
"""Demonstrations that are played side by side."""
TRIES = 4
"""How often a demonstration is played at most, in which no tool should fail."""
SHARING_S = 300.0
"""Deadline for setting up what episodes share, and for tearing it down."""


class LessonUnfit(AsyncRLError):
    """A lesson's script does not fit its environment."""


class Demonstration(msgspec.Struct, frozen=True):
    """One example episode.

    Attributes:
        task: the task that is played.
        opening: the messages before the first turn.
        tools: the tools that the environment offers.
        turns: the turns with calls; each with the environment's messages after it.
        answer: the text of the final turn.
        reward: the sum of the turns' rewards.
        failure: what the first tool that failed said; empty if none failed.
    """

    task: Task
    opening: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    turns: tuple[tuple[tuple[ToolCall, ...], tuple[Message, ...]], ...]
    answer: str
    reward: float
    failure: str = ""


def demonstrate(make: Callable[[Task], Environment], scripts: Sequence[tuple[Task, Script]]) -> list[Demonstration]:
    """Play each script in an environment that ``make`` makes for its task; returns one demonstration for each, in their order.

    Raises:
        LessonUnfit: an episode ends before its script does, or goes on after it.
    """
    return asyncio.run(_play_all(make, scripts, 1, lambda: None))


def demonstrate_in(
    member: str,
    spec: MemberConfig,
    scripts: Sequence[tuple[Task, Script]],
    tries: int = 1,
    played: Callable[[], None] = lambda: None,
) -> list[Demonstration]:
    """Do what :func:`demonstrate` does in environments such as a worker of a run makes.

    Args:
        member: name of the environment in the recipe, which its tasks name.
        tries: how often a script is played at most, until no tool fails and nothing is raised. The last try counts.
        played: is called for each demonstration that is there.

    Raises:
        LessonUnfit: as :func:`demonstrate`.
        RecipeError: the environment or its options are wrong, or a secret is not set.
        EnvironmentBroken: what its episodes share cannot be set up, or an environment cannot be made.
    """
    environments = WorkerEnvironments({member: load_member(spec)}, read_secrets(spec, os.environ), "lessons")

    async def in_worker() -> list[Demonstration]:
        await environments.start(SHARING_S)
        try:
            return await _play_all(environments.make, scripts, tries, played)
        finally:
            await environments.close(SHARING_S)

    return asyncio.run(in_worker())


async def _play_all(
    make: Callable[[Task], Environment], scripts: Sequence[tuple[Task, Script]], tries: int, played: Callable[[], None]
) -> list[Demonstration]:
    room = asyncio.Semaphore(AT_ONCE)

    async def try_once(task: Task, script: Script) -> Demonstration | Exception:
        try:
            return await play(make(task), task, script)
        except Exception as error:  # noqa: BLE001 - of the user's code; the last one is raised
            return error

    async def one(task: Task, script: Script) -> Demonstration:
        async with room:
            outcome = await try_once(task, script)
            for _ in range(tries - 1):
                if isinstance(outcome, Demonstration) and not outcome.failure:
                    break
                outcome = await try_once(task, script)
        if isinstance(outcome, Exception):
            raise outcome
        played()
        return outcome

    return await asyncio.gather(*(one(task, script) for task, script in scripts))


async def play(environment: Environment, task: Task, script: Script) -> Demonstration:
    """Play ``script`` in ``environment``, and close it.

    Raises:
        LessonUnfit: the episode ends before the script does, or goes on after it.
    """
    try:
        await environment.ready()
        observation = await environment.reset(task)
        turns, reward, failure = [], 0.0, ""
        for calls in script.turns:
            result = await environment.step(Action("", calls))
            if result.done:
                raise LessonUnfit(f"lesson for task {task.id}: the episode ends at {short(calls)}, before the script does")
            turns.append((calls, result.observation.messages))
            reward += result.reward
            if result.fault is Fault.TOOL_ERROR and not failure:
                failure = next((call.problem for call in result.calls if call.problem), "a tool failed")
        result = await environment.step(Action(script.answer, ()))
        if not result.done:
            raise LessonUnfit(f"lesson for task {task.id}: the episode goes on after the answer {short(script.answer)}")
        reward += result.reward
        return Demonstration(task, observation.messages, observation.tools, tuple(turns), script.answer, reward, failure)
    finally:
        await environment.close()
