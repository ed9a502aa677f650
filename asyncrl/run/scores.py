"""Scores of evaluated episodes: mean@k and pass@k, each with a 95 % confidence interval.

The tasks are the sample: the episodes of one task are alike, so an interval that took every episode for an observation of its
own would be too narrow. Each interval is a percentile bootstrap over tasks (Efron and Tibshirani 1993, chapter 13), from random
numbers that are the same in every evaluation. So equal rewards give equal scores.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from asyncrl.core.spread import reaches

RESAMPLES = 2000
"""Bootstrap samples of an interval."""
_LOW, _HIGH = 2.5, 97.5
_CELLS_AT_ONCE = 1 << 22
"""How many numbers of the resamples are held in memory at once."""


class Estimate(msgspec.Struct, frozen=True):
    """An estimate and its 95 % confidence interval. An interval without width means that all tasks agree, not certainty."""

    value: float
    low: float
    high: float


class Scores(msgspec.Struct, frozen=True):
    """The scores of one model on some tasks.

    Attributes:
        tasks: tasks with at least one episode.
        episodes: episodes played to their end.
        mean: mean@k, the reward averaged over the episodes of each task, and then over the tasks.
        passed: pass@k by k: the probability that at least one of k episodes of a task passes, averaged over the tasks that
            have k episodes. Empty where no episode was played.
    """

    tasks: int
    episodes: int
    mean: Estimate
    passed: dict[int, Estimate]


def pass_at(k: int, episodes: int, passed: int) -> float:
    """Return the probability that at least one of ``k`` episodes passes, from ``passed`` of ``episodes`` that did.

    The estimate is unbiased: 1 - C(episodes - passed, k) / C(episodes, k) (Chen et al. 2021, arXiv:2107.03374, equation 1).

    Raises:
        ValueError: there are fewer than ``k`` episodes, for which no unbiased estimate exists.
    """
    if not 1 <= k <= episodes:
        raise ValueError(f"pass@{k} cannot be estimated from {episodes} episodes; play at least {k}")
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
    ks = list(counts(samples))
    table = np.array([[np.mean(own), *_passes(own, ks, passing)] for own in played])
    mean, *passed = intervals(table)
    known = [(k, each) for k, each in zip(ks, passed, strict=True) if not np.isnan(each.value)]
    return Scores(len(played), sum(map(len, played)), mean, dict(known))


def difference(rewards: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> Estimate | None:
    """Return mean@k of ``rewards`` less that of ``others``, task by task; None where no task has episodes of both.

    The interval is of the differences: two models find the same tasks hard, so it is narrower than their own intervals.
    """
    pairs = [np.mean(own) - np.mean(other) for own, other in zip(rewards, others, strict=True) if own and other]
    return intervals(np.array(pairs)[:, None])[0] if pairs else None


def counts(samples: int) -> Iterator[int]:
    """Yield the values of k for which pass@k is told: the powers of two below ``samples``, and ``samples`` itself."""
    k = 1
    while k < samples:
        yield k
        k *= 2
    yield samples


def intervals(table: np.ndarray) -> list[Estimate]:
    """Return the mean of each column of ``table`` ([tasks, columns]; NaN where a task has no value), and its interval."""
    known, filled = (~np.isnan(table)).astype(float), np.nan_to_num(table)
    tasks = len(table)
    generator = np.random.default_rng(0)
    shares = np.full(tasks, 1 / tasks)
    resampled: list[np.ndarray] = []
    left = RESAMPLES
    while left:
        rows = min(left, max(1, _CELLS_AT_ONCE // tasks))
        drawn = generator.multinomial(tasks, shares, size=rows).astype(float)
        resampled.append(_ratio(drawn @ filled, drawn @ known))
        left -= rows
    means = _ratio(filled.sum(0), known.sum(0))
    several = np.concatenate(resampled)
    return [_estimate(mean, several[:, column]) for column, mean in enumerate(means)]


def _passes(rewards: Sequence[float], ks: Sequence[int], passing: float) -> list[float]:
    """pass@k of one task; NaN where it has fewer than k episodes, because some broke their environment."""
    passed = sum(reaches(reward, passing) for reward in rewards)
    return [pass_at(k, len(rewards), passed) if k <= len(rewards) else np.nan for k in ks]


def _ratio(sums: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """``sums / counted``, NaN where nothing was counted."""
    ratio: np.ndarray = np.divide(sums, counted, out=np.full_like(sums, np.nan), where=counted > 0)
    return ratio


def _estimate(mean: float, resampled: np.ndarray) -> Estimate:
    there = resampled[~np.isnan(resampled)]
    if np.isnan(mean) or not len(there):
        return Estimate(float("nan"), float("nan"), float("nan"))
    low, high = np.percentile(there, [_LOW, _HIGH])
    return Estimate(float(mean), float(low), float(high))
