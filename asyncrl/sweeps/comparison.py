"""Compares the settings of a sweep: each figure with an interval over its seeds, and which differences are larger than that.

The spread of seeds is taken to be the same for all settings, and is estimated from all of them together: so two seeds already
say something. Intervals of means are Student's with that spread, as far as the figure can go. Settings are compared seed by
seed, because a seed decides tasks and weights for all of them: what a seed does to all settings alike is taken out, as by the
blocks of an analysis of variance, where common seeds tell it, and the runs are enough to. A difference counts if Tukey's
interval of it, as Kramer has it for unequal numbers (1956, Biometrics 12), leaves out zero: of all pairs of a figure together,
one in twenty sweeps of equal settings shows one. Figures that are rates are compared by their logarithms, so that a difference
is a factor.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import Literal

import msgspec
import numpy as np
from scipy.stats import studentized_range, t

from asyncrl.core.measures.units import percent
from asyncrl.core.text import pluralize
from asyncrl.run.measures.intervals import Estimate
from asyncrl.run.measures.summary import Summary
from asyncrl.run.report.figures import number

LEVEL = 0.95
TOLD = 4
"""How many differences of a figure are told in sentences."""


class Measure(msgspec.Struct, frozen=True):
    """One figure of a run.

    Attributes:
        name: its name, and its unit if it has one.
        read: takes it from a summary; None if the run has none.
        kind: a rate is compared by factors, a share is shown in percent.
        least, most: the ends of what it can be, as far as they are known: those of rewards are not.
    """

    name: str
    read: Callable[[Summary], float | None]
    kind: Literal["number", "rate", "share"] = "number"
    least: float = -math.inf
    most: float = math.inf


MEASURES = (
    Measure("final evaluation", lambda summary: summary.evaluation.last),
    Measure("training reward at last", lambda summary: summary.reward.last),
    Measure("trajectories a second", lambda summary: summary.trajectories_per_s, "rate", 0.0),
    Measure("trained tokens a second", lambda s: s.tokens.trained / s.training_s if s.training_s > 0 else None, "rate", 0.0),
    Measure("staleness, mean", lambda summary: summary.staleness.mean, least=0.0),
    Measure("staleness, largest", lambda summary: summary.staleness.max, least=0.0),
    Measure("engines idle", lambda summary: summary.idle.generators, "share", 0.0, 1.0),
    Measure("learner idle", lambda summary: summary.idle.learner, "share", 0.0, 1.0),
)
"""What is compared, in the order in which it is shown."""


class Spread(msgspec.Struct, frozen=True):
    """A figure of one setting: that of each seed that has one, and their mean with its interval; None of one seed."""

    values: tuple[float, ...]
    mean: float
    interval: tuple[float, float] | None


class Difference(msgspec.Struct, frozen=True):
    """How much larger a figure is with one setting than with another, both given by their places; of rates, by what factor."""

    larger: int
    smaller: int
    size: Estimate


class ComparedMeasure(msgspec.Struct, frozen=True):
    """One figure of all settings.

    Attributes:
        spreads: by the setting's place; None where no run has the figure.
        differences: those that are larger than the spread of seeds.
        judged: whether that could be told of any pair: two settings have the figure, each with several seeds.
    """

    measure: Measure
    spreads: tuple[Spread | None, ...]
    differences: tuple[Difference, ...]
    judged: bool


def compare(settings: Sequence[Mapping[int, Summary]]) -> tuple[ComparedMeasure, ...]:
    """Compare settings by the summaries of their runs that have completed, which are given by seed."""
    return tuple(made for measure in MEASURES if (made := _compared(measure, settings)) is not None)


def _compared(measure: Measure, settings: Sequence[Mapping[int, Summary]]) -> ComparedMeasure | None:
    read = [{seed: value for seed, each in runs.items() if (value := measure.read(each)) is not None} for runs in settings]
    if not any(read):
        return None
    rate = measure.kind == "rate" and all(value > 0 for values in read for value in values.values())
    scaled = [{seed: math.log(value) if rate else value for seed, value in values.items()} for values in read]
    having = [place for place, values in enumerate(scaled) if len(values) > 1]
    # A figure that a setting fixes, as a staleness of 0, is the same for all seeds, and says nothing of how others spread.
    spreading = [place for place in having if np.ptp([*scaled[place].values()]) > 0] or having
    alone = _Fit([scaled[place] for place in spreading], by_seed=False)
    spreads = tuple(
        _spread(measure, [*own.values()], np.array([*values.values()]), alone, rate=rate) if own else None
        for own, values in zip(read, scaled, strict=True)
    )
    if len(having) < 2:
        return ComparedMeasure(measure, spreads, (), judged=False)
    paired = _Fit([scaled[place] for place in spreading], by_seed=True)
    found = []
    for one, other in combinations(having, 2):
        by_seed = None
        if paired.freedom > 1 and one in spreading and other in spreading:
            by_seed = paired.difference(spreading.index(one), spreading.index(other))
        if by_seed is not None:
            fit, size, variance = paired, *by_seed
        else:  # a seed does nothing to what a setting fixes; and one degree of freedom is too few to tell anything by
            fit, size = alone, float(np.mean([*scaled[one].values()]) - np.mean([*scaled[other].values()]))
            variance = 1 / len(scaled[one]) + 1 / len(scaled[other])
        larger, smaller = (one, other) if size >= 0 else (other, one)
        size = abs(size)
        margin = _studentized_range(len(having), fit.freedom) * fit.deviation * math.sqrt(variance / 2)
        if size > margin + 1e-12 * max(1.0, size):
            ends = (size, size - margin, min(size + margin, math.inf if rate else measure.most - measure.least))
            found.append(Difference(larger, smaller, Estimate(*(map(math.exp, ends) if rate else ends))))
    return ComparedMeasure(measure, spreads, tuple(found), judged=True)


class _Fit:
    """The figures of several settings as a sum: what the setting does and, ``by_seed``, what the seed does to all of them.

    Attributes:
        freedom: how many figures are left over to tell the spread from.
        deviation: the standard deviation of what the sum leaves unexplained; not a number without freedom.
    """

    def __init__(self, settings: Sequence[Mapping[int, float]], *, by_seed: bool) -> None:
        seeds = sorted({seed for values in settings for seed in values}) if by_seed else []
        values = [(place, seed, value) for place, own in enumerate(settings) for seed, value in own.items()]
        design = np.zeros((len(values), len(settings) + len(seeds)))
        for row, (place, seed, _) in enumerate(values):
            design[row, place] = 1
            if by_seed:
                design[row, len(settings) + seeds.index(seed)] = 1
        figures = np.array([value for _, _, value in values])
        self._design, self._inverse = design, np.linalg.pinv(design)
        self._effects = self._inverse @ figures
        self.freedom = len(values) - int(np.linalg.matrix_rank(design)) if values else 0
        left = float(((figures - design @ self._effects) ** 2).sum())
        self.deviation = math.sqrt(left / self.freedom) if self.freedom else math.nan

    def difference(self, one: int, other: int) -> tuple[float, float] | None:
        """How much larger the first setting's figure is, and the variance of that in units of the squared deviation.

        None if that cannot be told from what their seeds do: no seed is common to both, or leads from one to the other by way
        of further settings.
        """
        weights = self._inverse[one] - self._inverse[other]
        wanted = np.zeros(self._design.shape[1])
        wanted[one], wanted[other] = 1, -1
        if not np.allclose(weights @ self._design, wanted, atol=1e-6):
            return None
        return float(self._effects[one] - self._effects[other]), float(weights @ weights)


@cache
def _studentized_range(settings: int, freedom: int) -> float:
    return float(studentized_range.ppf(LEVEL, settings, freedom))  # takes a tenth of a second and more


def _spread(measure: Measure, own: Sequence[float], scaled: np.ndarray, fit: _Fit, *, rate: bool) -> Spread:
    mean = float(scaled.mean())
    back = math.exp if rate else float
    if len(own) < 2:
        return Spread(tuple(own), back(mean), None)
    if np.ptp(scaled) == 0:  # the setting fixes it
        return Spread(tuple(own), back(mean), (back(mean), back(mean)))
    margin = float(t.ppf((1 + LEVEL) / 2, fit.freedom)) * fit.deviation / math.sqrt(len(own))
    low, high = (min(measure.most, max(measure.least, back(end))) for end in (mean - margin, mean + margin))
    return Spread(tuple(own), back(mean), (low, high))


def sentences(compared: Sequence[ComparedMeasure], names: Sequence[str]) -> list[str]:
    """Say of each figure which differences are larger than the spread of seeds: the largest ones, and how many there are."""
    found: list[str] = []
    for each in compared:
        if not each.judged:
            continue
        if not each.differences:
            found.append(f"{each.measure.name}: no difference is larger than the spread of seeds")
        largest = sorted(each.differences, key=lambda difference: -difference.size.value)
        found += [_sentence(each.measure, difference, names) for difference in largest[:TOLD]]
        if (more := len(largest) - TOLD) > 0:
            found.append(f"{each.measure.name}: more than the spread of seeds differ {pluralize(more, 'further pair')}, too")
    return found


def _sentence(measure: Measure, difference: Difference, names: Sequence[str]) -> str:
    larger, smaller, size = names[difference.larger], names[difference.smaller], difference.size
    if measure.kind == "rate":
        return f"{measure.name}: {larger} has {size.value:.3g} times ({size.low:.3g} to {size.high:.3g}) those of {smaller}"
    if measure.kind == "share":
        value, low, high = (f"{100 * each:.3g}" for each in (size.value, size.low, size.high))
        return f"{measure.name}: {larger} is {value} points ({low} to {high}) above {smaller}"
    return f"{measure.name}: {larger} is {size.value:.3g} ({size.low:.3g} to {size.high:.3g}) above {smaller}"


def told(measure: Measure, value: float) -> str:
    """A figure as people read it."""
    return percent(value) if measure.kind == "share" else number(value)


def with_interval(measure: Measure, spread: Spread | None) -> str:
    """The mean of a figure and its interval; a dash where there is none."""
    if spread is None:
        return "-"
    if spread.interval is None:
        return told(measure, spread.mean)
    low, high = (told(measure, each) for each in spread.interval)
    return f"{told(measure, spread.mean)} ({low} to {high})"
