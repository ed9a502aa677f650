"""95 % confidence intervals of means over tasks, for few tasks and for means near the ends of their range too.

The tasks are the sample: the episodes of one task are alike, so an interval that took every episode for an observation of its
own would be too narrow. The spread between tasks says how many yes-or-no tasks would tell as much of the mean, and the interval
is the exact one for the share of so many (Clopper and Pearson 1934, with the effective sample size of Korn and Graubard 1998,
Survey Methodology 24). No mean of numbers within the range spreads more than one of zeros and ones, so there are at least as many
as tasks; where every task gives 0 or 1, there are exactly as many. Nothing is random: equal rewards give equal intervals.
"""

import msgspec
import numpy as np
from scipy.special import betaincinv, stdtrit

_TAIL = 0.025
_NORMAL = 1.959963984540054
"""The quantile of the normal distribution that leaves :data:`_TAIL` above it."""


class Estimate(msgspec.Struct, frozen=True):
    """An estimate and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def mean_interval(values: np.ndarray, least: float, most: float) -> Estimate:
    """Estimate the mean of one number for each task.

    Args:
        values: float64 [tasks], at least one, from ``least`` to ``most``.
        least, most: the range that the numbers of all tasks lie in, those that were not played too.
    """
    width = most - least
    if width <= 0:
        return Estimate(least, least, least)
    within = _mean_share((values - least) / width)
    return Estimate(float(np.mean(values)), least + width * within.low, least + width * within.high)


def difference_interval(differences: np.ndarray, most: float) -> Estimate:
    """Estimate the mean of one difference for each task.

    What is gained on some tasks and what is lost on others are means with intervals of their own, which are combined as in Zou
    and Donner 2008 (Statistics in Medicine 27), with the correlation that there is between them.

    Args:
        differences: float64 [tasks], at least one, from ``-most`` to ``most``.
        most: the largest difference that there can be.
    """
    if most <= 0:
        return Estimate(0.0, 0.0, 0.0)
    parts = np.stack([differences.clip(min=0), (-differences).clip(min=0)]) / most
    gained, lost = map(_mean_share, parts)
    correlation = float(np.corrcoef(parts)[0, 1]) if parts.std(axis=1).all() else 0.0
    below = _combined(gained.value - gained.low, lost.high - lost.value, correlation)
    above = _combined(gained.high - gained.value, lost.value - lost.low, correlation)
    value = float(np.mean(differences))
    return Estimate(value, max(-most, value - most * below), min(most, value + most * above))


def _combined(one: float, other: float, correlation: float) -> float:
    return float(np.sqrt(max(0.0, one**2 + other**2 - 2 * correlation * one * other)))


def _mean_share(values: np.ndarray) -> Estimate:
    """Estimate the mean of numbers from 0 to 1."""
    tasks = len(values)
    share = min(1.0, max(0.0, float(np.mean(values))))
    variance = float(np.var(values, ddof=1)) / tasks if tasks > 1 else 0.0
    size = float(tasks)
    if variance > 0:
        # Student's quantile, because the spread between few tasks is itself an estimate.
        size = max(size, share * (1 - share) / variance * (_NORMAL / float(stdtrit(tasks - 1, 1 - _TAIL))) ** 2)
    passed, failed = share * size, (1 - share) * size
    low = float(betaincinv(passed, failed + 1, _TAIL)) if passed > 0 else 0.0
    high = float(betaincinv(passed + 1, failed, 1 - _TAIL)) if failed > 0 else 1.0
    return Estimate(share, low, high)
