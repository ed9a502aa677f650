"""Scores of evaluated episodes: mean@k and pass@k, each with a 95 % confidence interval (:mod:`.intervals`)."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from asyncrl.core.reward_spread import reaches
from asyncrl.run.measures.intervals import Estimate, difference_interval, mean_interval


class Scores(msgspec.Struct, frozen=True):
    """The scores of one model on some tasks.

    Attributes:
        tasks: tasks with at least one episode.
        episodes: episodes played to their end.
        mean: mean@k, the reward averaged over the episodes of each task, and then over the tasks.
        passed: pass@k by k: the probability that at least one of k episodes of a task passes, averaged over the same tasks for
            every k, those with as many episodes as any has.
        compared: how many tasks these are.
    """

    tasks: int
    episodes: int
    mean: Estimate
    passed: dict[int, Estimate]
    compared: int


def pass_at(k: int, episodes: int, passed: int) -> float:
    """Return the probability that at least one of ``k`` episodes passes, from ``passed`` of ``episodes`` that did.

    The estimate is unbiased: 1 - C(episodes - passed, k) / C(episodes, k) (Chen et al. 2021, arXiv:2107.03374, equation 1).

    Raises:
        ValueError: there are fewer than ``k`` episodes, for which no unbiased estimate exists.
    """
    if not 1 <= k <= episodes:
        raise ValueError(f"pass@{k} cannot be estimated from {episodes} episodes; play at least {k}")
    if k == 1:
        return passed / episodes
    if episodes - passed < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(episodes - passed + 1, episodes + 1)))


def score(rewards: Sequence[Sequence[float]], samples: int, passing: float) -> Scores:
    """Score the episodes of some tasks.

    Args:
        rewards: of each task, the rewards of its episodes; a task without episodes is left out.
        samples: how many episodes each task was to have.
        passing: the least reward with which an episode passes.

    Raises:
        ValueError: no task has an episode.
    """
    played = [own for own in rewards if own]
    if not played:
        raise ValueError("there is no episode to score")
    mean = mean_interval(np.array([np.mean(own) for own in played]), *_range(played, passing))
    most = max(map(len, played))
    whole = [_passed(own, passing) for own in played if len(own) == most]
    passed = {
        k: mean_interval(np.array([pass_at(k, most, each) for each in whole]), 0.0, 1.0) for k in counts(samples) if k <= most
    }
    return Scores(len(played), sum(map(len, played)), mean, passed, len(whole))


def difference(rewards: Sequence[Sequence[float]], others: Sequence[Sequence[float]], passing: float) -> Estimate | None:
    """Return mean@k of ``rewards`` less that of ``others``, task by task; None where no task has episodes of both.

    The interval is of the differences: two models find the same tasks hard, so it is narrower than their own intervals.
    """
    pairs = [(own, other) for own, other in zip(rewards, others, strict=True) if own and other]
    if not pairs:
        return None
    least, most = _range([own for pair in pairs for own in pair], passing)
    return difference_interval(np.array([np.mean(own) - np.mean(other) for own, other in pairs]), most - least)


def counts(samples: int) -> Iterator[int]:
    """Yield the values of k for which pass@k is given: the powers of two below ``samples``, and ``samples`` itself."""
    k = 1
    while k < samples:
        yield k
        k *= 2
    yield samples


def _passed(rewards: Sequence[float], passing: float) -> int:
    return sum(reaches(reward, passing) for reward in rewards)


def _range(rewards: Sequence[Sequence[float]], passing: float) -> tuple[float, float]:
    """The range that rewards are taken to lie in: from 0 to the passing reward, and as far as they are seen to go."""
    seen = [reward for own in rewards for reward in own]
    return min(0.0, *seen), max(passing, *seen)
