"""Chooses what a report draws of the metrics of its runs: curves, staleness, and where the time of both sides went."""

from collections.abc import Sequence

from asyncrl.core.measures.time_split import (
    GENERATOR_TIME,
    GENERATORS,
    IDLE_GENERATORS,
    IDLE_LEARNER,
    LEARNER,
    LEARNER_TIME,
    WAITS,
)
from asyncrl.learners import metrics as learner_metrics
from asyncrl.learners.metrics import TOKENS_AT
from asyncrl.run.measures import metrics
from asyncrl.run.measures.declared_metrics import declared, metric_called
from asyncrl.run.measures.episode_metrics import ENVIRONMENT, LATENCY, MEMBER, REWARD_PARTS, SOURCE, TOOL
from asyncrl.run.report.figures import Chart, Curve, Timeline, chart, timeline
from asyncrl.run.report.run_record import RunRecord
from asyncrl.run.tracking.metric_history import Series

MAIN = (
    metrics.REWARD,
    metrics.EVALUATION_REWARD,
    learner_metrics.TEACHER_KL,
    metrics.EPISODE_TOKENS,
    metrics.ZERO_VARIANCE,
    learner_metrics.ENTROPY,
    learner_metrics.GRAD_NORM,
    learner_metrics.POLICY_LOSS,
    learner_metrics.BEHAVIOUR_K3,
    learner_metrics.LOGPROB_GAP,
    learner_metrics.EFFECTIVE_SAMPLE_SIZE,
    learner_metrics.CLIP_FRACTION,
    metrics.TRAJECTORY_RATE,
)
"""The metrics that a reader looks at first, in this order."""

ABOUT_ENVIRONMENTS = (ENVIRONMENT, LATENCY, TOOL, SOURCE, MEMBER)
"""Beginnings of the names of the metrics about environments."""

_PARTS = [metric.name for metric in (*GENERATORS.values(), *LEARNER.values())]
"""Parts of the time in the order in which they are drawn; parts that wait come last."""
_WAITS = {metric.name for metric in WAITS}
_ALL_POINTS = 480
"""Points of all curves of a small figure together."""


def span_of(runs: Sequence[RunRecord]) -> tuple[int, int]:
    """Return the first and the last training step that any run has a metric of."""
    steps = [step for run in runs for each in run.metrics.values() for step in (each.steps[:1] + each.steps[-1:])]
    return (min(steps), max(steps)) if steps else (0, 1)


def main_charts(runs: Sequence[RunRecord]) -> list[Chart]:
    """Return a chart of each of :data:`MAIN`, and of each named part of the reward, that a run has, all runs in it."""
    names = {name for run in runs for name in run.metrics}
    parts = sorted(name for name in names - {metric.name for metric in declared()} if name.startswith(REWARD_PARTS))
    chosen = [MAIN[0].name, *parts, *(metric.name for metric in MAIN[1:])]
    return [made for name in chosen if (made := _compared(runs, name)) is not None]


def environment_charts(runs: Sequence[RunRecord]) -> list[Chart]:
    """Return charts of what environments report, of each tool and task source, and of latencies."""
    names = sorted({name for run in runs for name in run.metrics if name.startswith(ABOUT_ENVIRONMENTS)}, key=_by_kind)
    return [made for name in names if (made := _compared(runs, name)) is not None]


def other_charts(runs: Sequence[RunRecord], shown: Sequence[str]) -> list[Chart]:
    """Return a chart of every metric that is not in ``shown``, in the order of their names."""
    names = sorted({name for run in runs for name in run.metrics} - set(shown))
    points = max(30, _ALL_POINTS // (4 * len(runs)))
    return [made for name in names if (made := _compared(runs, name, points)) is not None]


def named_charts(runs: Sequence[RunRecord], by_run: Sequence[dict[str, Series]], unit: str) -> list[Chart]:
    """Return a chart of each name that some run has a series of, all runs in it."""
    span, charts = span_of(runs), []
    for name in dict.fromkeys(name for named in by_run for name in named):
        curves = [
            Curve.of(run.name, named[name], i) for i, (run, named) in enumerate(zip(runs, by_run, strict=True)) if name in named
        ]
        charts.append(chart(name, curves, span, unit=unit))
    return charts


def staleness_chart(runs: Sequence[RunRecord]) -> Chart | None:
    """Return mean and greatest staleness of each run in one chart."""
    curves = []
    for colour, run in enumerate(runs):
        suffix = f" {run.name}" if len(runs) > 1 else ""
        for metric, word, dashed in (
            (learner_metrics.STALENESS_MEAN, "mean", False),
            (learner_metrics.STALENESS_MAX, "largest", True),
        ):
            if (found := run.series(metric.name)) is not None:
                curves.append(Curve.of(f"{word}{suffix}", found, colour, dashed=dashed))
    return chart("staleness", curves, span_of(runs), unit="versions") if curves else None


def staleness_timelines(runs: Sequence[RunRecord]) -> list[Timeline]:
    """Return for each run which share of the trained tokens had which staleness."""
    timelines = []
    for run in runs:
        tokens = {name.removeprefix(TOKENS_AT): each for name, each in run.metrics.items() if name.startswith(TOKENS_AT)}
        ages = {age: tokens[age] for age in sorted((age for age in tokens if age.isdigit()), key=int) if any(tokens[age].values)}
        totals: dict[int, float] = {}
        for each in ages.values():
            for step, value in zip(each.steps, each.values, strict=True):
                totals[step] = totals.get(step, 0.0) + value
        shares = {age: _divided(each, totals) for age, each in ages.items()}
        if shares and totals:
            title = f"share of trained tokens by staleness{_of(run, runs)}"
            timelines.append(timeline(title, shares, span_of(runs), ordered=True))
    return timelines


def time_timelines(runs: Sequence[RunRecord]) -> list[Timeline]:
    """Return for each run who worked and who waited: the learner, then the generators."""
    timelines = []
    for run in runs:
        for side, prefix, idle in (("learner", LEARNER_TIME, IDLE_LEARNER), ("generators", GENERATOR_TIME, IDLE_GENERATORS)):
            names = [name for name, each in run.metrics.items() if name.startswith(prefix) and any(each.values)]
            ordered = sorted(names, key=lambda name: (name in _WAITS, _place_of(name)))
            parts = {_part(name, prefix): run.metrics[name] for name in ordered}
            waits = [_part(name, prefix) for name in ordered if name in _WAITS]
            if not parts and (found := run.series(idle.name)) is not None:
                busy = Series(found.steps, tuple(1 - value for value in found.values))
                parts, waits = {"working": busy, "idle": found}, ["idle"]
            if parts:
                timelines.append(timeline(f"{side}{_of(run, runs)}", parts, span_of(runs), waits=waits))
    return timelines


def _by_kind(name: str) -> tuple[int, str]:
    return next(place for place, prefix in enumerate(ABOUT_ENVIRONMENTS) if name.startswith(prefix)), name


def _part(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).replace("_", " ")


def _place_of(name: str) -> int:
    """Where a part of the time stands among the others; one that this version does not know comes last."""
    return _PARTS.index(name) if name in _PARTS else len(_PARTS)


def _compared(runs: Sequence[RunRecord], name: str, points: int = 300) -> Chart | None:
    curves = [Curve.of(run.name, found, i) for i, run in enumerate(runs) if (found := run.series(name)) is not None]
    if not curves:
        return None
    metric = metric_called(name)
    unit, meaning = (metric.unit, metric.meaning) if metric else ("", "")
    return chart(name, curves, span_of(runs), unit="" if unit == "1" else unit, meaning=meaning, points=points)


def _divided(series: Series, totals: dict[int, float]) -> Series:
    shares = ((step, value / totals[step]) for step, value in zip(series.steps, series.values, strict=True) if totals[step] > 0)
    steps, values = zip(*shares, strict=True) if totals else ((), ())
    return Series(tuple(steps), tuple(values))


def _of(run: RunRecord, runs: Sequence[RunRecord]) -> str:
    return f" of {run.name}" if len(runs) > 1 else ""
