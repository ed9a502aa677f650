"""Computes the reward of a finished episode from the score of a reward model.

What always holds: a scored episode has the reward that follows from its score, or none at all; and if its turns' rewards
added up to its reward, they still do.

Asks a teacher how probable what the policy sampled is to it, and keeps that with the episode.

What always holds: each trained trajectory of an episode that was asked about has one log-probability for each sampled token, or
the episode has failed. They are of the teacher's weights alone, so they do not age while the episode waits to be trained.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import numpy as np

from asyncrl.core.episode import Episode
from asyncrl.core.errors import ComponentFailed, FailureKind, ScoringFailed
from asyncrl.core.measures.counters import Counters
from asyncrl.core.reward_range import LARGEST_REWARD, is_reward
from asyncrl.core.task import Task

SCORE = "model_score"
ENVIRONMENT_REWARD = "environment_reward"
"""``SCORE`` and ``ENVIRONMENT_REWARD`` name the episode metrics for the two parts of the reward."""
_EXPECTED = f"it must be a number of at most {LARGEST_REWARD:g} in size"


class Scorer(Protocol):
    """Scores finished episodes, many at once. Every call is bounded by the implementation's own deadline."""

    async def score(self, task: Task, episode: Episode) -> float:
        """Return the score of an episode of ``task``; NaN or infinite if the model gives it no score.

        Raises:
            ScoringFailed: there was no answer in time.
            ComponentFailed: there will never be one.
        """
        ...


class ScoringUse(Counters, msgspec.Struct, frozen=True):
    """Counters of the episodes scored so far.

    Attributes:
        episodes: number of episodes with a score.
        total: sum of their scores.
        seconds: seconds that they waited for their scores, summed.
    """

    episodes: int = 0
    total: float = 0.0
    seconds: float = 0.0


class Scoring:
    """Has episodes scored, and counts them.

    Args:
        environment_weight: factor of the environment's own reward, which is added to the score.
        clock: returns the time in seconds; must never go back.
    """

    def __init__(self, scorer: Scorer, environment_weight: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._scorer, self._environment_weight, self._clock = scorer, environment_weight, clock
        self.use = ScoringUse()

    async def reward(self, task: Task, episode: Episode) -> Episode:
        """Return the episode with the reward ``score + environment_weight * reward``; unchanged if it has no turn.

        Rewards that roles have of their own change in the same way. The score is added to the reward of the last turn of the
        final trajectory. The metrics get both parts, as :data:`SCORE` and :data:`ENVIRONMENT_REWARD`.

        Raises:
            ScoringFailed: there is no score, or the score or the new reward is not a reward that can be trained on.
            ComponentFailed: the scorer failed for good, or the environment reports metrics with these names.
        """
        if not episode.final_trajectory().turns:
            return episode
        began = self._clock()
        score = await self._scorer.score(task, episode)
        if not is_reward(score):
            name = f"task {task.id}, group {episode.group_id}, sample {episode.sample_index}"
            raise ScoringFailed(FailureKind.DATA, f"the reward model's score of {name} is {score}; {_EXPECTED}")
        seconds = self._clock() - began
        self.use += ScoringUse(1, score, seconds)
        scored = _with_score(episode, score, self._environment_weight)
        scored = msgspec.structs.replace(scored, times=msgspec.structs.replace(scored.times, scoring_s=seconds))
        before = {"": episode.reward, **episode.role_rewards}
        for role, reward in {"": scored.reward, **scored.role_rewards}.items():
            if not is_reward(reward):
                whose = f"role {role!r} in task {task.id}" if role else f"task {task.id}"
                raise ScoringFailed(
                    FailureKind.DATA,
                    f"the reward of {whose} is {reward}: score {score:g} and {self._environment_weight:g} times the "
                    f"environment's {before[role]:g}; {_EXPECTED}",
                )
        return scored


def _with_score(episode: Episode, score: float, environment_weight: float) -> Episode:
    if taken := episode.metrics.keys() & {SCORE, ENVIRONMENT_REWARD}:
        problem = (
            f"the environment of task {episode.task_id} reports a metric {min(taken)!r}, a name that scoring uses; rename it"
        )
        raise ComponentFailed(problem)
    final = episode.final_trajectory()
    trajectories = []
    for trajectory in episode.trajectories:
        turns = [msgspec.structs.replace(turn, reward=environment_weight * turn.reward) for turn in trajectory.turns]
        if trajectory is final:
            turns[-1] = msgspec.structs.replace(turns[-1], reward=turns[-1].reward + score)
        trajectories.append(msgspec.structs.replace(trajectory, turns=tuple(turns)))
    scored = msgspec.structs.replace(episode, trajectories=tuple(trajectories))
    adds_up = episode.reward == sum(turn.reward for turn in episode.turns())
    return msgspec.structs.replace(
        scored,
        reward=sum(turn.reward for turn in scored.turns()) if adds_up else environment_weight * episode.reward + score,
        role_rewards={role: environment_weight * reward + score for role, reward in episode.role_rewards.items()},
        metrics={**episode.metrics, SCORE: score, ENVIRONMENT_REWARD: episode.reward},
    )


class Teacher(Protocol):
    """Computes log-probabilities of given tokens. Every call is bounded by the implementation's own deadline."""

    async def logprobs(self, row: np.ndarray) -> np.ndarray:
        """Return float32 [T - 1], the log-probability (nats, temperature 1) of each token of ``row``, int32 [T], but the first.

        Raises:
            ScoringFailed: there was no answer in time.
            ComponentFailed: there will never be one.
        """
        ...


class TeachingUse(Counters, msgspec.Struct, frozen=True):
    """Counters of what a teacher was asked.

    Attributes:
        tokens: sampled tokens with a log-probability.
        seconds: seconds that their episodes waited for it, summed.
        episodes: these episodes.
    """

    tokens: int = 0
    seconds: float = 0.0
    episodes: int = 0


class Teaching:
    """Has a teacher look at finished episodes, and counts them.

    Args:
        clock: returns the time in seconds; must never go back.
    """

    def __init__(self, teacher: Teacher, clock: Callable[[], float] = time.monotonic) -> None:
        self._teacher, self._clock = teacher, clock
        self.use = TeachingUse()

    async def taught(self, episode: Episode) -> Episode:
        """Return the episode with the teacher's log-probabilities in each trajectory that is trained and has a turn.

        Raises:
            ScoringFailed: there was no answer, or it holds something that is not a number.
            ComponentFailed: the teacher failed for good.
        """
        began, tokens = self._clock(), 0
        trajectories = list(episode.trajectories)
        for part, trajectory in enumerate(trajectories):
            if trajectory.trained and trajectory.turns:
                found = (await self._teacher.logprobs(trajectory.token_ids))[trajectory.loss_mask[1:]]
                _check(found, trajectory.token_ids[trajectory.loss_mask], episode)
                trajectories[part] = msgspec.structs.replace(trajectory, teacher_logprobs=found)
                tokens += len(found)
        if not tokens:
            return episode
        seconds = self._clock() - began
        self.use += TeachingUse(tokens, seconds, 1)
        times = msgspec.structs.replace(episode.times, scoring_s=episode.times.scoring_s + seconds)
        return msgspec.structs.replace(episode, trajectories=tuple(trajectories), times=times)


def _check(logprobs: np.ndarray, tokens: Sequence[int] | np.ndarray, episode: Episode) -> None:
    if not np.isfinite(logprobs).all():
        place = int(np.flatnonzero(~np.isfinite(logprobs))[0])
        name = f"task {episode.task_id}, group {episode.group_id}, sample {episode.sample_index}"
        raise ScoringFailed(
            FailureKind.DATA,
            f"the teacher's log-probability of token {int(tokens[place])}, sampled as number {place} of {name}, is "
            f"{logprobs[place]}; with a teacher that can give every token, it is a finite number",
        )
