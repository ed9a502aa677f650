"""Evaluation on a worker's engine: plays the episodes of held-out tasks, also while training goes on.

An episode that breaks its environment, or whose prompt leaves no room for a turn, gets no reward.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence

import msgspec

from asyncrl.core.episode import Episode
from asyncrl.core.errors import EnvironmentBroken, EnvironmentLost, PromptTooLong, first_error
from asyncrl.core.ids import NOT_SAMPLED, GroupId, PolicyVersion, TaskId
from asyncrl.core.task import Task
from asyncrl.core.text import pluralize
from asyncrl.core.trajectory import StopReason
from asyncrl.generators.episode import EpisodeLimits, EpisodeName, EpisodeTools, run_episode

logger = logging.getLogger(__name__)

MOST_LOSSES = 10
"""How often an episode may lose what its environment stands on before it is left out."""
_EVALUATION_GROUP = GroupId(-1)


class HeldOutTask(msgspec.Struct, frozen=True):
    """A task to be evaluated on.

    Attributes:
        source: name of its task source.
        samples: how many episodes of it to play.
    """

    task: Task
    source: str
    samples: int = 1


class EvaluationResult(msgspec.Struct, frozen=True):
    """One episode of a held-out task.

    Attributes:
        turns: number of turns of the model, in all trajectories.
        oldest, newest: the oldest and the newest policy version that sampled a token of it; None if no token was sampled.
    """

    task_id: TaskId
    reward: float
    stop_reason: StopReason
    turns: int
    oldest: PolicyVersion | None = None
    newest: PolicyVersion | None = None

    @classmethod
    def of(cls, episode: Episode) -> "EvaluationResult":
        """Return the result of an episode."""
        spans = [span for trajectory in episode.trajectories for span in trajectory.version_spans]
        versions = [span.version for span in spans if span.version != NOT_SAMPLED]
        oldest, newest = min(versions, default=None), max(versions, default=None)
        return cls(episode.task_id, episode.reward, episode.stop_reason, sum(1 for _ in episode.turns()), oldest, newest)


class BrokenEpisode(msgspec.Struct, frozen=True):
    """An episode of a held-out task that has no reward, because it broke its environment or its prompt is too long; ``problem``
    says how."""

    task_id: TaskId
    problem: str


Evaluated = EvaluationResult | BrokenEpisode


def require_results(evaluated: Sequence[Evaluated]) -> list[EvaluationResult]:
    """Return the results of the episodes that have one.

    Raises:
        EnvironmentBroken: none has, although there were episodes.
    """
    results = [each for each in evaluated if isinstance(each, EvaluationResult)]
    broken = [each.problem for each in evaluated if isinstance(each, BrokenEpisode)]
    if broken and not results:
        tasks = pluralize(len({each.task_id for each in evaluated}), "task")
        raise EnvironmentBroken(f"none of {len(broken)} evaluation episodes of {tasks} could be played; first error: {broken[0]}")
    return results


async def evaluate(
    tasks: Sequence[HeldOutTask], limits: Mapping[str, EpisodeLimits], tools: EpisodeTools, *, at_once: int, attempts: int
) -> list[Episode | BrokenEpisode]:
    """Play the episodes of each task. The engine serves these episodes and all other requests at the same time.

    An episode that breaks its environment ``attempts`` times, or whose prompt leaves no room for a turn, has no result. It is
    never counted as a reward of 0.

    Args:
        limits: by member of the environment.
        at_once: most episodes played at the same time.
        attempts: how often an episode may break its environment before it is left out.

    Raises:
        ComponentFailed: the engine died.
    """
    slots = asyncio.Semaphore(at_once)
    with first_error():
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(_evaluate(each.task, sample_index, limits[each.task.environment], tools, slots, attempts))
                for each in tasks
                for sample_index in range(each.samples)
            ]
    return [episode.result() for episode in running]


async def _evaluate(
    task: Task, sample_index: int, limits: EpisodeLimits, tools: EpisodeTools, slots: asyncio.Semaphore, attempts: int
) -> Episode | BrokenEpisode:
    broken: list[EnvironmentBroken | EnvironmentLost | PromptTooLong] = []
    losses = 0
    while len(broken) < attempts:
        try:
            async with slots:
                return await run_episode(task, EpisodeName(_EVALUATION_GROUP, sample_index, len(broken)), limits, tools)
        except EnvironmentLost as lost:  # the next try waits until there is something to stand on again
            losses += 1
            if losses == MOST_LOSSES:  # the task may be what ends its server
                broken.append(lost)
                break
            logger.warning("an evaluation episode is played again: %s", lost)
        except EnvironmentBroken as error:
            broken.append(error)
        except PromptTooLong as error:  # another try would find the same
            broken.append(error)
            break
    failure = broken[-1]
    logger.warning("an evaluation episode is left out of the result: %s", failure)
    return BrokenEpisode(task.id, str(failure))
