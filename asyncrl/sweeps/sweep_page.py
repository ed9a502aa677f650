"""Makes the page of a sweep, in the style of a report.

What always holds: it is one file that loads nothing, which its own content security policy enforces; names and reasons are text.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jinja2
import msgspec
from markupsafe import Markup

from asyncrl.core.measures.units import duration, percent
from asyncrl.core.text import pluralize, writable
from asyncrl.episodes.visible import visible
from asyncrl.planning.view import with_interval as figure_with_interval
from asyncrl.run.measures.summary import Summary
from asyncrl.run.report.figures import number
from asyncrl.run.report.page import SCRIPT, STYLE, TEMPLATES, breakable
from asyncrl.sweeps.comparison import compare, sentences, told, with_interval
from asyncrl.sweeps.point_record import PointRecord, read_points
from asyncrl.sweeps.remarks import notes_of
from asyncrl.sweeps.sweep import Sweep
from asyncrl.sweeps.sweep_curves import views
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
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([_HERE, TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "percent": percent, "duration": duration, "breakable": breakable}
    names = [setting.name for setting in sweep.settings]
    page = environment.get_template("sweep.html.j2").render(
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
