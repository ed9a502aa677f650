"""The reward of a finished episode from the score that somebody gives it.

What always holds: an episode has the reward it was scored with or none at all, and the rewards of its turns add up to it.
"""

import math
import time
from collections.abc import Callable

import msgspec

from asyncrl.core.errors import ComponentFailed, FailureKind, ScoringFailed
from asyncrl.core.scoring import Scorer
from asyncrl.core.task import Task
from asyncrl.core.trajectory import Trajectory

SCORE = "model_score"
ENVIRONMENT_REWARD = "environment_reward"
"""What an episode's metrics call the two numbers that its reward is made of."""


class ScoringUse(msgspec.Struct, frozen=True):
    """Counters of what was scored so far, which only grow.

    Attributes:
        episodes: how many episodes have a score.
        total: the sum of their scores.
        seconds: the sum of the seconds that they waited for it.
    """

    episodes: int = 0
    total: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: "ScoringUse") -> "ScoringUse":
        return ScoringUse(self.episodes + other.episodes, self.total + other.total, self.seconds + other.seconds)

    def __sub__(self, other: "ScoringUse") -> "ScoringUse":
        return ScoringUse(self.episodes - other.episodes, self.total - other.total, self.seconds - other.seconds)


class Scoring:
    """Has episodes scored, and counts.

    Args:
        environment_weight: this much of the environment's own reward is added to the score.
    """

    def __init__(self, scorer: Scorer, environment_weight: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._scorer, self._environment_weight, self._clock = scorer, environment_weight, clock
        self.use = ScoringUse()

    async def reward(self, task: Task, trajectory: Trajectory) -> Trajectory:
        """The same episode with the reward ``score + environment_weight * reward``. One without a turn stays as it is.

        The score falls on the last turn. Both numbers are in the metrics, as :data:`SCORE` and :data:`ENVIRONMENT_REWARD`.

        Raises:
            ScoringFailed: there is no score, or it is not finite.
            ComponentFailed: there will never be one, or the environment has metrics of these names.
        """
        if not trajectory.turns:
            return trajectory
        began = self._clock()
        score = await self._scorer.score(task, trajectory)
        if not math.isfinite(score):
            name = f"task {task.id}, group {trajectory.group_id}, sample {trajectory.sample_index}"
            raise ScoringFailed(FailureKind.DATA, f"the reward model's score of {name} is {score}; it must be a finite number")
        seconds = self._clock() - began
        self.use += ScoringUse(1, score, seconds)
        scored = _with_score(trajectory, score, self._environment_weight)
        scored = msgspec.structs.replace(scored, times=msgspec.structs.replace(scored.times, scoring_s=seconds))
        if not math.isfinite(scored.reward):
            raise ScoringFailed(
                FailureKind.DATA,
                f"the reward of task {task.id} is {scored.reward}: score {score:g} and {self._environment_weight:g} times the "
                f"environment's {trajectory.reward:g}; it must be a finite number",
            )
        return scored


def _with_score(trajectory: Trajectory, score: float, environment_weight: float) -> Trajectory:
    if taken := trajectory.metrics.keys() & {SCORE, ENVIRONMENT_REWARD}:
        problem = (
            f"the environment of task {trajectory.task_id} reports a metric {min(taken)!r}, as scoring does itself; rename it"
        )
        raise ComponentFailed(problem)
    turns = [msgspec.structs.replace(turn, reward=environment_weight * turn.reward) for turn in trajectory.turns]
    turns[-1] = msgspec.structs.replace(turns[-1], reward=turns[-1].reward + score)
    return msgspec.structs.replace(
        trajectory,
        turns=tuple(turns),
        reward=sum(turn.reward for turn in turns),
        metrics={**trajectory.metrics, SCORE: score, ENVIRONMENT_REWARD: trajectory.reward},
    )
