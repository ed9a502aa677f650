"""Evaluation on a worker's engine, beside training: one episode of each held-out task; a task that breaks has no reward."""

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
        turns: how many turns the model took.
        text: the whole episode, decoded; empty but for the first few.
    """

    task_id: TaskId
    reward: float
    stop_reason: StopReason
    turns: int
    text: str


async def evaluate(
    tasks: Sequence[Task], limits: EpisodeLimits, tools: EpisodeTools, *, at_once: int, attempts: int, texts: int
) -> list[EvaluationResult]:
    """Play one episode of each task; the engine shares its time among these and all other requests.

    A task that breaks its environment ``attempts`` times has no result; it is never counted as a reward of 0.

    Args:
        at_once: how many episodes are played at a time.
        texts: how many of the results hold their text.

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
        raise EnvironmentBroken(f"none of {len(tasks)} evaluation tasks could be run; the first: {running[0].result()}")
    return [_result(trajectory, tools, with_text=index < texts) for index, trajectory in enumerate(trajectories)]


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
    logger.warning("evaluation task left out: %s", failure)
    return failure


def _result(trajectory: Trajectory, tools: EpisodeTools, *, with_text: bool) -> EvaluationResult:
    return EvaluationResult(
        task_id=trajectory.task_id,
        reward=trajectory.reward,
        stop_reason=trajectory.stop_reason,
        turns=len(trajectory.turns),
        text=tools.chat.decode(trajectory.token_ids.tolist()) if with_text else "",
    )
