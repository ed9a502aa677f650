"""Demonstrations: scripts of lessons, played in the real environment.

What always holds: everything that the model does not say in a demonstration, from the system prompt to the tools' results, is
what the environment said.
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
from asyncrl.envs.base import Action, Environment
from asyncrl.envs.lessons.base import Script
from asyncrl.envs.load import load_member
from asyncrl.envs.secrets import read_secrets
from asyncrl.envs.worker_environments import WorkerEnvironments

AT_ONCE = 32
"""Demonstrations that are played side by side."""
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
    """

    task: Task
    opening: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    turns: tuple[tuple[tuple[ToolCall, ...], tuple[Message, ...]], ...]
    answer: str
    reward: float


def demonstrate(make: Callable[[Task], Environment], scripts: Sequence[tuple[Task, Script]]) -> list[Demonstration]:
    """Play each script in an environment that ``make`` makes for its task; returns one demonstration for each, in their order.

    Raises:
        LessonUnfit: an episode ends before its script does, or goes on after it.
    """
    return asyncio.run(_play_all(make, scripts))


def demonstrate_in(member: str, spec: MemberConfig, scripts: Sequence[tuple[Task, Script]]) -> list[Demonstration]:
    """Do what :func:`demonstrate` does in environments such as a worker of a run makes.

    Args:
        member: name of the environment in the recipe, which its tasks name.

    Raises:
        LessonUnfit: as :func:`demonstrate`.
        RecipeError: the environment or its options are wrong, or a secret is not set.
        EnvironmentBroken: what its episodes share cannot be set up, or an environment cannot be made.
    """
    environments = WorkerEnvironments({member: load_member(spec)}, read_secrets(spec, os.environ), "lessons")

    async def in_worker() -> list[Demonstration]:
        await environments.start(SHARING_S)
        try:
            return await _play_all(environments.make, scripts)
        finally:
            await environments.close(SHARING_S)

    return asyncio.run(in_worker())


async def _play_all(make: Callable[[Task], Environment], scripts: Sequence[tuple[Task, Script]]) -> list[Demonstration]:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(task: Task, script: Script) -> Demonstration:
        async with room:
            return await play(make(task), task, script)

    return await asyncio.gather(*(one(task, script) for task, script in scripts))


async def play(environment: Environment, task: Task, script: Script) -> Demonstration:
    """Play ``script`` in ``environment``, and close it.

    Raises:
        LessonUnfit: the episode ends before the script does, or goes on after it.
    """
    try:
        await environment.ready()
        observation = await environment.reset(task)
        turns, reward = [], 0.0
        for calls in script.turns:
            result = await environment.step(Action("", calls))
            if result.done:
                raise LessonUnfit(f"lesson for task {task.id}: the episode ends at {short(calls)}, before the script does")
            turns.append((calls, result.observation.messages))
            reward += result.reward
        result = await environment.step(Action(script.answer, ()))
        if not result.done:
            raise LessonUnfit(f"lesson for task {task.id}: the episode goes on after the answer {short(script.answer)}")
        return Demonstration(task, observation.messages, observation.tools, tuple(turns), script.answer, reward + result.reward)
    finally:
        await environment.close()
