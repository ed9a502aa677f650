"""Metrics declare name, unit and reduction where they are born, so that nobody guesses how to aggregate them from the name."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Reduction(StrEnum):
    """How readings of one metric from several places are combined."""

    MEAN = "mean"
    """Weighted by :attr:`Reading.weight`."""
    SUM = "sum"
    MAX = "max"
    MIN = "min"


class Metric(msgspec.Struct, frozen=True):
    """A declared metric: ``name`` as tracked, e.g. ``learner/grad_norm``; ``unit``; how it reduces; what it means."""

    name: str
    unit: str
    reduction: Reduction
    meaning: str


class Reading(msgspec.Struct, frozen=True):
    """One value of one metric. ``weight`` matters to means only: the number of tokens, rows or seconds behind the value."""

    metric: Metric
    value: float
    weight: float = 1.0


def combine(readings: Iterable[Reading]) -> dict[str, float]:
    """Reduce the readings of each metric to one value, by metric name. A mean whose weights sum to 0 is left out."""
    by_metric: dict[Metric, list[Reading]] = {}
    for reading in readings:
        by_metric.setdefault(reading.metric, []).append(reading)
    combined: dict[str, float] = {}
    for metric, several in by_metric.items():
        match metric.reduction:
            case Reduction.SUM:
                combined[metric.name] = sum(r.value for r in several)
            case Reduction.MAX:
                combined[metric.name] = max(r.value for r in several)
            case Reduction.MIN:
                combined[metric.name] = min(r.value for r in several)
            case Reduction.MEAN:
                weight = sum(r.weight for r in several)
                if weight > 0:
                    combined[metric.name] = sum(r.value * r.weight for r in several) / weight
    return combined
