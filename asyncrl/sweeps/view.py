"""Shows a sweep in the terminal: what would be run, and what came of it."""

from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from asyncrl.core.text import without_passwords
from asyncrl.run.measures.summary import Summary
from asyncrl.sweeps.comparison import compare, sentences, with_interval
from asyncrl.sweeps.sweep import Sweep

SHOWN = ("final evaluation", "trajectories a second", "staleness, mean")
"""The figures that a terminal shows; the report has all."""


def points_view(sweep: Sweep) -> RenderableType:
    """Return the table of the runs of a sweep."""
    table = Table(title=f"Runs of the sweep of {sweep.recipe}", title_justify="left", border_style="dim", box=box.ROUNDED)
    for column in ("", "setting", "seed", "changes"):
        table.add_column(column, overflow="fold")
    for number, point in enumerate(sweep.points, 1):
        setting = sweep.settings[point.setting]
        changes = " ".join((*sweep.fixed, *setting.overrides))
        table.add_row(str(number), Text(setting.name), str(point.seed), Text(without_passwords(changes)))
    return table


def outcome_view(sweep: Sweep, done: Sequence[Mapping[int, Summary]]) -> Iterator[RenderableType]:
    """Yield the figures of all settings, and which of them differ.

    Args:
        done: for each setting, the summaries of its runs that have completed, by seed.
    """
    compared = compare(done)
    shown = [each for each in compared if each.measure.name in SHOWN]
    if not shown:
        return
    table = Table(title="Means over seeds (intervals of 95 %)", title_justify="left", border_style="dim", box=box.ROUNDED)
    table.add_column("setting", overflow="fold")
    for column in ("completed", *(each.measure.name for each in shown)):
        table.add_column(column, justify="right", overflow="fold")
    for place, setting in enumerate(sweep.settings):
        if not setting.dropped:
            figures = (with_interval(each.measure, each.spreads[place]) for each in shown)
            table.add_row(Text(setting.name), f"{len(done[place])} of {len(sweep.seeds)}", *figures)
    yield table
    for sentence in sentences(shown, [setting.name for setting in sweep.settings]):
        yield Text(sentence)
