"""Makes the page of a sweep, in the style of a report.

What always holds: it is one file that loads nothing, which its own content security policy enforces; names and reasons are text.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from markupsafe import Markup

from asyncrl.core.measures.metrics import Metric
from asyncrl.core.text import pluralize, writable
from asyncrl.planning.view import with_interval as figure_with_interval
from asyncrl.run.measures.summary import Summary
from asyncrl.run.report.figures import COLOURS, STEPS, Chart, Curve, chart, number
from asyncrl.run.report.page import SCRIPT, STYLE, page_template
from asyncrl.run.tracking.metric_history import Series
from asyncrl.sweeps.comparison import compare, sentences, told, with_interval
from asyncrl.sweeps.point_record import CURVES, PointRecord, read_points
from asyncrl.sweeps.remarks import notes_of
from asyncrl.sweeps.sweep import Sweep
from asyncrl.sweeps.sweep_folder import PointState, SweepFolder

_HERE = Path(__file__).parent


class SettingRow(msgspec.Struct, frozen=True):
    """A line of the table of settings: its place, name, how many of its points have completed, and its figures."""

    place: int
    name: str
    done: str
    figures: tuple[str, ...]
    seeds: tuple[str, ...]


class ForeseenRow(msgspec.Struct, frozen=True):
    """A line of the table of what a plan has foreseen: a setting, its figures foreseen and measured, and why it was dropped."""

    name: str
    speed: str
    measured_speed: str
    age: str
    measured_age: str
    dropped: str


def sweep_page(folder: SweepFolder) -> str:
    """Return the report on a sweep as HTML that can be encoded as UTF-8.

    Raises:
        RecipeError: what the sweep consists of cannot be read.
    """
    sweep = folder.read()
    records = read_points(folder, sweep)
    done = folder.completed(sweep)
    compared = compare(done)
    names = [setting.name for setting in sweep.settings]
    page = page_template("sweep.html.j2", _HERE).render(
        style=Markup(STYLE),
        script=Markup(SCRIPT),
        name=folder.path.name,
        sweep=sweep,
        sentences=sentences(compared, names),
        judged=any(each.judged for each in compared),
        unjudged=[
            setting.name for setting, own in zip(sweep.settings, done, strict=True) if len(own) < 2 and not setting.dropped
        ],
        measures=[each.measure.name for each in compared],
        rows=[
            SettingRow(
                place,
                setting.name,
                f"{len(done[place])} of {len(sweep.seeds)}",
                tuple(with_interval(each.measure, each.spreads[place]) for each in compared),
                tuple(
                    ", ".join(told(each.measure, value) for value in spread.values)
                    if (spread := each.spreads[place]) is not None and len(spread.values) > 1
                    else ""
                    for each in compared
                ),
            )
            for place, setting in enumerate(sweep.settings)
            if not setting.dropped
        ],
        views=views(sweep, records),
        foreseen=list(_foreseen(sweep, done)),
        notes=notes_of(sweep.settings),
        points=records,
        troubled=[each for each in records if each.state is not PointState.COMPLETED],
        progress=how_far(records),
    )
    return writable(page)


def how_far(records: Sequence[PointRecord]) -> str:
    """Say how many points are in which state."""
    counts = {state: sum(each.state is state for each in records) for state in reversed(PointState)}
    return f"{pluralize(len(records), 'run')}: " + ", ".join(f"{count} {state}" for state, count in counts.items() if count)


def _foreseen(sweep: Sweep, done: Sequence[Mapping[int, Summary]]) -> Iterator[ForeseenRow]:
    for setting, own in zip(sweep.settings, done, strict=True):
        if setting.foreseen is None:
            continue
        speeds = [summary.trajectories_per_s for summary in own.values()]
        ages = [summary.staleness.mean for summary in own.values()]
        yield ForeseenRow(
            setting.name,
            figure_with_interval(setting.foreseen.trajectories_per_s),
            number(sum(speeds) / len(speeds)) if speeds else "-",
            figure_with_interval(setting.foreseen.staleness_mean),
            number(sum(ages) / len(ages)) if ages else "-",
            setting.dropped,
        )


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
