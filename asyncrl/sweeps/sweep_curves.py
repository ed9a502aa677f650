"""Draws the curves of a sweep: of each setting the mean over its seeds, and the seeds themselves, faint, behind it."""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from asyncrl.core.measures.metrics import Metric
from asyncrl.run.report.figures import COLOURS, STEPS, Chart, Curve, chart
from asyncrl.run.tracking.metric_history import Series
from asyncrl.sweeps.point_record import CURVES, PointRecord
from asyncrl.sweeps.sweep import Sweep

GRID = 200
"""Points of a mean over seeds whose own points lie elsewhere."""
_Points = tuple[tuple[float, ...], tuple[float, ...]]


class View(msgspec.Struct, frozen=True):
    """The curves over one thing: its title, what the x axis shows, and the charts."""

    title: str
    across: str
    charts: tuple[Chart, ...]


def views(sweep: Sweep, records: Sequence[PointRecord]) -> list[View]:
    """Return the curves by wall clock, by training step and by trained token, as far as points have any."""
    kinds: tuple[tuple[str, str, Callable[[PointRecord], Mapping[int, float] | None]], ...] = (
        ("By wall clock", "seconds of training", lambda record: record.seconds),
        ("By training step", STEPS, lambda record: None),
        ("By trained token", "trained tokens", lambda record: record.tokens),
    )
    found = []
    for title, across, places in kinds:
        charts = [made for metric in CURVES if (made := _chart(sweep, records, metric, across, places)) is not None]
        if charts:
            found.append(View(title, across, tuple(charts)))
    return found


def _chart(
    sweep: Sweep,
    records: Sequence[PointRecord],
    metric: Metric,
    across: str,
    places: Callable[[PointRecord], Mapping[int, float] | None],
) -> Chart | None:
    curves = []
    for place, setting in enumerate(sweep.settings):
        own = [each for each in records if each.point.setting == place and metric.name in each.curves]
        seeds = [made for each in own if (made := _placed(each.curves[metric.name], places(each)))[0]]
        if seeds:
            x, y = _mean(seeds)
            behind = tuple(seeds) if len(seeds) > 1 else ()
            curves.append(Curve(name=setting.name, x=x, y=y, colour=place, dashed=place >= COLOURS, parts=behind))
    if not curves:
        return None
    every = [x for curve in curves for x in (curve.x, *(x for x, _ in curve.parts))]
    span = min(x[0] for x in every), max(x[-1] for x in every)
    unit = "" if metric.unit == "1" else metric.unit
    return chart(metric.name, curves, span, unit=unit, meaning=metric.meaning, across=across)


def _placed(series: Series, places: Mapping[int, float] | None) -> _Points:
    """The points of a metric over training steps, or where its steps ended; steps of which that is not known are left out."""
    if places is None:
        return tuple(map(float, series.steps)), series.values
    known = [(places[step], value) for step, value in zip(series.steps, series.values, strict=True) if step in places]
    return tuple(x for x, _ in known), tuple(value for _, value in known)


def _mean(seeds: Sequence[_Points]) -> _Points:
    """The mean of curves, where all of them are; at the points of the first if all have the same, and else on a grid."""
    if all(x == seeds[0][0] for x, _ in seeds):
        return seeds[0][0], tuple(np.mean([y for _, y in seeds], axis=0).tolist())
    first, last = max(x[0] for x, _ in seeds), min(x[-1] for x, _ in seeds)
    grid = np.linspace(first, max(first, last), min(GRID, max(len(x) for x, _ in seeds)))
    return tuple(grid.tolist()), tuple(np.mean([np.interp(grid, x, y) for x, y in seeds], axis=0).tolist())
