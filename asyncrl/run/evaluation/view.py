"""Shows an evaluation of models as a table: a row for each model, and one for each task source where there are several."""

from collections.abc import Callable, Iterator
from pathlib import Path

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from asyncrl.core.measures.units import percent
from asyncrl.core.text import pluralize
from asyncrl.episodes.visible import visible
from asyncrl.run.evaluation.summary import EvaluationSummary, ModelScores
from asyncrl.run.measures.intervals import Estimate
from asyncrl.run.measures.scores import Scores
from asyncrl.run.measures.summary import Status

_STYLE = {Status.COMPLETED: "bold green", Status.INTERRUPTED: "bold yellow", Status.FAILED: "bold red"}
_MANY = 0.1
"""The share of episodes cut off from which on there is a remark."""


def evaluation_view(summary: EvaluationSummary, folder: Path) -> list[RenderableType]:
    """Return the reason, the table, what is missing and the folder, to be printed one after the other."""
    parts: list[RenderableType] = []
    if summary.reason:
        parts.append(Text.assemble((summary.status.capitalize(), _STYLE[summary.status]), f": {visible(summary.reason)}"))
    if summary.models:
        tasks = max(model.scores.tasks for model in summary.models)
        played = f"{tasks:,} tasks, {summary.samples} episode{'s' * (summary.samples > 1)} of each"
        parts.append(Text.assemble((summary.recipe, "bold"), f": {played}, temperature {summary.temperature:g}"))
        parts.append(_table(summary))
        legend = f"[low, high] holds 95 %, over tasks; a reward of {summary.passing_reward:g} passes"
        parts.append(Text(legend, "dim"))
        parts += [Text(visible(sentence), "yellow") for model in summary.models for sentence in _remarks(model)]
    parts.append(Text.assemble(("Scores and episodes: ", "dim"), str(folder)))
    return parts


def _table(summary: EvaluationSummary) -> Table:
    columns = dict(_columns(summary))
    table = Table(border_style="dim", box=box.ROUNDED)
    table.add_column("model", overflow="fold")
    for name in columns:
        table.add_column(name, no_wrap=True)
    compared = len(summary.models) > 1
    if compared:
        table.add_column("to the first", no_wrap=True)
    for model in summary.models:
        cells = [_estimate(estimate(model.scores)) for estimate in columns.values()]
        table.add_row(Text(model.model), *cells, *([_estimate(model.difference, "+")] if compared else []))
        for source, scores in model.sources.items() if len(model.sources) > 1 else ():
            table.add_row(
                Text(f"  {source}: {scores.tasks:,} tasks"), *(_estimate(estimate(scores)) for estimate in columns.values())
            )
    return table


def _columns(summary: EvaluationSummary) -> Iterator[tuple[str, Callable[[Scores], Estimate | None]]]:
    """Yield the columns; pass@1 only where it says something else than the mean."""
    yield f"mean@{summary.samples}", lambda scores: scores.mean
    if any(model.scores.passed[1] != model.scores.mean for model in summary.models):
        yield "pass@1", lambda scores: scores.passed.get(1)
    if summary.samples > 1:
        yield f"pass@{summary.samples}", lambda scores: scores.passed.get(summary.samples)


def _estimate(estimate: Estimate | None, sign: str = "") -> Text:
    """An estimate above its interval, with fewer digits."""
    if estimate is None:
        return Text()
    interval = f"[{estimate.low:{sign}.2f}, {estimate.high:{sign}.2f}]"
    return Text.assemble(f"{estimate.value:{sign}.3f}\n", (interval, "dim"))


def _remarks(model: ModelScores) -> Iterator[str]:
    if model.missing:
        all_of = f", among them all of {pluralize(model.missing_tasks, 'task')}" if model.missing_tasks else ""
        yield (
            f"{model.model}: {pluralize(model.missing, 'episode')}{all_of}, broke their environment in each of {model.attempts} "
            f"tries (buffer.max_attempts; an error in your code is counted in each try) and are in no score, e.g. "
            f"{model.example}; see {model.folder}/logs"
        )
    if model.scores.compared < model.scores.tasks:
        yield (
            f"{model.model}: pass@k is of the {pluralize(model.scores.compared, 'task')} of {model.scores.tasks:,} with the most "
            "episodes, so that it is over the same tasks for every k"
        )
    cut = {reason: share for reason, share in model.stopped.items() if reason != "environment_done"}
    if sum(cut.values()) >= _MANY:
        reasons = ", ".join(f"{percent(share)} by {reason}" for reason, share in sorted(cut.items(), key=lambda each: -each[1]))
        yield f"{model.model}: many episodes were cut off: {reasons}"
