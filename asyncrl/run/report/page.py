"""Makes the page of a report.

What always holds: it is one file that loads nothing, which its own content security policy enforces; whatever runs and episodes
hold is text in it, never markup or script.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup, escape

from asyncrl.core.measures.time_split import GENERATOR_TIME, LEARNER_TIME
from asyncrl.core.measures.units import duration, percent, quantity
from asyncrl.core.text import listed, writable
from asyncrl.episodes.measures import Measure
from asyncrl.episodes.reader import Choice
from asyncrl.episodes.schema import Kind
from asyncrl.episodes.visible import visible
from asyncrl.learners.metrics import MOST_LOAD, STALENESS_MAX, STALENESS_MEAN, TOKENS_AT
from asyncrl.run.measures.episode_metrics import ENVIRONMENT
from asyncrl.run.measures.summary import Summary, training_reward
from asyncrl.run.report.curves import (
    environment_charts,
    main_charts,
    named_charts,
    other_charts,
    staleness_chart,
    staleness_timelines,
    time_timelines,
)
from asyncrl.run.report.episode_tables import episode_tables
from asyncrl.run.report.figures import Histogram, histogram, number
from asyncrl.run.report.gap_table import gap_table
from asyncrl.run.report.neighbours import neighbours
from asyncrl.run.report.run_record import RunRecord
from asyncrl.run.report.token_viewer import shown_episodes

NO_VALUE = "-"
"""Stands where a run has no value."""
TEMPLATES = Path(__file__).parent
STYLE, SCRIPT = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
"""The style of all pages, and the script of those with charts."""


class Compared(msgspec.Struct, frozen=True):
    """One fact about each run, in the order of the runs."""

    name: str
    values: tuple[str, ...]


def report_page(runs: Sequence[RunRecord]) -> str:
    """Return the report on ``runs`` as HTML that can be encoded as UTF-8.

    Raises:
        EpisodesUnreadable: a file of kept episodes is damaged.
    """
    tables = [None if run.episodes is None else episode_tables(run.episodes) for run in runs]
    charts, surroundings, staleness = main_charts(runs), environment_charts(runs), staleness_chart(runs)
    shown = [chart.title for chart in (*charts, *surroundings)] + [STALENESS_MEAN.name, STALENESS_MAX.name]
    shown += [name for run in runs for name in run.metrics if name.startswith((LEARNER_TIME, GENERATOR_TIME, TOKENS_AT))]
    tracked = any(name.startswith(ENVIRONMENT) for run in runs for name in run.metrics)
    reported = [{} if each is None or tracked else each.reported for each in tables]
    page = page_template("page.html.j2").render(
        style=Markup(STYLE),
        script=Markup(SCRIPT),
        runs=runs,
        facts=list(_facts(runs)),
        neighbours=neighbours(runs[0]) if len(runs) == 1 else [],
        changed=changed_keys(runs),
        keys=[Compared(key, _values(runs, key)) for key in _keys(runs)],
        charts=charts,
        surroundings=surroundings,
        staleness=staleness,
        ages=staleness_timelines(runs),
        times=time_timelines(runs),
        lengths=list(_lengths(runs)),
        reported=named_charts(runs, reported, "mean of kept episodes"),
        tables=[(run, each) for run, each in zip(runs, tables, strict=True) if each is not None and each.episodes],
        gaps=[
            (run, found)
            for run in runs
            if run.episodes is not None
            and (found := gap_table(run.episodes, run.recipe, routed=MOST_LOAD.name in run.metrics)) is not None
        ],
        others=other_charts(runs, shown),
        episodes=_script_data(runs),
    )
    return writable(page)


def page_template(name: str, *folders: Path, **filters: Callable[..., Any]) -> jinja2.Template:
    """Return the template of a page, which is in one of the folders or here; texts in it are harmless.

    Args:
        filters: what it uses beside the filters that all pages have.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "percent": percent, "duration": duration, "breakable": breakable, **filters}
    return environment.get_template(name)


def breakable(name: str) -> Markup:
    """Return a name as text that may go on in the next line after ``/``, ``_`` and ``.``, and nowhere else if there is room."""
    return Markup(re.sub(r"([/_.])(?=\w)", r"\1<wbr>", str(escape(visible(name)))))


def changed_keys(runs: Sequence[RunRecord]) -> list[Compared]:
    """Return the recipe keys in which runs differ; a key that a run does not have has a dash. Names of the runs are no change."""
    rows = (Compared(key, _values(runs, key)) for key in _keys(runs) if key not in ("name", "run_dir"))
    return [row for row in rows if len(set(row.values)) > 1]


def _keys(runs: Sequence[RunRecord]) -> list[str]:
    return list(dict.fromkeys(key for run in runs for key in run.recipe))


def _values(runs: Sequence[RunRecord], key: str) -> tuple[str, ...]:
    return tuple(run.recipe.get(key, NO_VALUE) for run in runs)


def _facts(runs: Sequence[RunRecord]) -> Iterator[Compared]:
    for name, fact in _FACTS.items():
        values = tuple(NO_VALUE if run.summary is None else fact(run.summary) for run in runs)
        if any(value not in ("", NO_VALUE) for value in values):
            yield Compared(name, values)


_FACTS: dict[str, Callable[[Summary], str]] = {
    "status": lambda s: s.status.value,
    "training steps": lambda s: f"{s.steps:,} in {duration(s.training_s)}; {duration(s.wall_s)} in all",
    "training reward": training_reward,
    "evaluation": lambda s: f"{_reward(s.evaluation.first)} at first, {_reward(s.evaluation.last)} at last",
    "evaluations left out": lambda s: f"of versions {listed(s.evaluation.skipped)}" if s.evaluation.skipped else "",
    "trajectories a second": lambda s: number(s.trajectories_per_s),
    "staleness": lambda s: f"{s.staleness.mean:.2f} on average, at most {s.staleness.max:g} of {s.staleness.bound}",
    "tokens": lambda s: f"{quantity(s.tokens.generated)} generated, {quantity(s.tokens.trained)} trained",
    "idle": lambda s: f"generators {percent(s.idle.generators)}, learner {percent(s.idle.learner)}",
    "groups": lambda s: f"{s.ledger.issued:,} issued, {s.ledger.trained:,} trained",
    "tasks left out, prompt too long": lambda s: ", ".join(f"{count:,} of {source}" for source, count in s.too_long.items()),
    "bottleneck": lambda s: "" if s.bottleneck is None else s.bottleneck.sentence,
}


def _reward(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:.3f}"


def _lengths(runs: Sequence[RunRecord]) -> Iterator[Histogram]:
    for run in runs:
        if run.episodes is not None:
            lengths = run.episodes.places(Choice(kind=Kind.TRAIN), Measure.LENGTH)["measure"].to_numpy()
            if len(lengths):
                of = f" of {run.name}" if len(runs) > 1 else ""
                yield histogram(f"length of {len(lengths):,} kept episodes{of}", lengths, unit="tokens")


def _script_data(runs: Sequence[RunRecord]) -> Markup | None:
    """Return the episodes as JSON that may stand in a script element: no ``<`` can end it, whatever the texts hold."""
    shown = shown_episodes(runs)
    if not shown.episodes:
        return None
    text = msgspec.json.encode({"runs": [visible(run.name) for run in runs], **msgspec.structs.asdict(shown)}).decode()
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
