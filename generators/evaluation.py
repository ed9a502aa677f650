"""Evaluation on a worker's engine while training goes on: plays one episode of each held-out task.

A task that breaks its environment gets no reward.
"""

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.ids import GroupId, TaskId
from asyncrl.core.task import Task
from asyncrl.core.trajectory import StopReason, Trajectory
from generators.episode import EpisodeLimits, EpisodeName, EpisodeTools, run_episode
from generators.first_error import first_error

logger = logging.getLogger(__name__)

_EVALUATION_GROUP = GroupId(-1)


class EvaluationResult(msgspec.Struct, frozen=True):
    """One episode of a held-out task.

    Attributes:
        turns: number of turns of the model.
    """

    task_id: TaskId
    reward: float
    stop_reason: StopReason
    turns: int

    @classmethod
    def of(cls, trajectory: Trajectory) -> "EvaluationResult":
        """Return the result that a trajectory tells."""
        return cls(trajectory.task_id, trajectory.reward, trajectory.stop_reason, len(trajectory.turns))


async def evaluate(
    tasks: Sequence[Task], limits: EpisodeLimits, tools: EpisodeTools, *, at_once: int, attempts: int
) -> list[Trajectory]:
    """Play one episode of each task. The engine serves these episodes and all other requests at the same time.

    A task that breaks its environment ``attempts`` times has no trajectory. It is never counted as a reward of 0.

    Args:
        at_once: most episodes played at the same time.
        attempts: how often a task may break its environment before it is left out.

    Raises:
        EnvironmentBroken: every task broke its environment.
        ComponentFailed: the engine died.
    """
    slots = asyncio.Semaphore(at_once)
    with first_error():
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(_evaluate(task, limits, tools, slots, attempts)) for task in tasks]
    trajectories = [trajectory for episode in running if isinstance(trajectory := episode.result(), Trajectory)]
    if tasks and not trajectories:
        raise EnvironmentBroken(f"none of {len(tasks)} evaluation tasks could be run; the first error: {running[0].result()}")
    return trajectories


async def _evaluate(
    task: Task, limits: EpisodeLimits, tools: EpisodeTools, slots: asyncio.Semaphore, attempts: int
) -> Trajectory | EnvironmentBroken:
    failure: EnvironmentBroken
    for attempt in range(attempts):
        try:
            async with slots:
                return await run_episode(task, EpisodeName(_EVALUATION_GROUP, 0, attempt), limits, tools)
        except EnvironmentBroken as error:
            failure = error
    logger.warning("an evaluation task is left out of the result: %s", failure)
    return failure
