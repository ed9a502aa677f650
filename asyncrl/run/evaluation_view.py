"""Shows an evaluation of models as a table: a row for each model, and one for each task source where there are several."""

from collections.abc import Iterator
from pathlib import Path

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from asyncrl.run.evaluation_summary import EvaluationSummary, ModelScores
from asyncrl.run.scores import Estimate, Scores
from asyncrl.run.summary import Status
from asyncrl.run.units import percent

_STYLE = {Status.COMPLETED: "bold green", Status.INTERRUPTED: "bold yellow", Status.FAILED: "bold red"}
_ALL = "all"
_MANY = 0.1
"""The share of episodes that were cut off from which on the user is told."""


def evaluation_view(summary: EvaluationSummary, folder: Path) -> list[RenderableType]:
    """Reason, table, what is missing, and the folder, to be printed one after the other."""
    parts: list[RenderableType] = []
    if summary.reason:
        parts.append(Text.assemble((summary.status.capitalize(), _STYLE[summary.status]), f": {summary.reason}"))
    if summary.models:
        parts.append(_table(summary))
        parts += [Text(sentence, "yellow") for model in summary.models for sentence in _remarks(model)]
    parts.append(Text.assemble(("Scores and episodes: ", "dim"), str(folder)))
    return parts


def _table(summary: EvaluationSummary) -> Table:
    caption = (
        f"95 % intervals by bootstrap over tasks; an episode passes with a reward of {summary.passing_reward:g}; "
        f"temperature {summary.temperature:g}"
    )
    table = Table(title=Text(f"{summary.recipe}: {summary.environment}", "bold"), title_justify="left", caption=caption)
    table.caption_justify, table.border_style, table.box = "left", "dim", box.ROUNDED
    several_sources = any(len(model.sources) > 1 for model in summary.models)
    compared = len(summary.models) > 1
    ks = sorted({1, summary.samples})
    table.add_column("model", overflow="fold")
    if several_sources:
        table.add_column("source", overflow="fold")
    table.add_column("tasks", justify="right")
    for name in (f"mean@{summary.samples}", *(f"pass@{k}" for k in ks)):
        table.add_column(name, no_wrap=True)
    if compared:
        table.add_column("to the first", no_wrap=True)
    table.add_column("turns", justify="right")
    for model in summary.models:
        for index, (source, scores) in enumerate(_rows(model, several_sources)):
            first = index == 0
            row = [model.model if first else "", *([source] if several_sources else []), f"{scores.tasks:,}"]
            row += [_estimate(scores.mean), *(_estimate(scores.passed.get(k)) for k in ks)]
            row += [_signed(model.difference) if first else ""] if compared else []
            table.add_row(*row, f"{model.turns:.1f}" if first else "")
    return table


def _rows(model: ModelScores, several_sources: bool) -> Iterator[tuple[str, Scores]]:
    yield _ALL, model.scores
    if several_sources:
        yield from model.sources.items()


def _estimate(estimate: Estimate | None) -> str:
    return "" if estimate is None else f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _signed(estimate: Estimate | None) -> str:
    return "" if estimate is None else f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def _remarks(model: ModelScores) -> Iterator[str]:
    if model.missing:
        yield (f"{model.model}: {model.missing:,} episodes broke their environment and are in no score; see {model.folder}/logs")
    cut = {reason: share for reason, share in model.stopped.items() if reason != "environment_done"}
    if sum(cut.values()) >= _MANY:
        told = ", ".join(f"{percent(share)} by {reason}" for reason, share in sorted(cut.items(), key=lambda each: -each[1]))
        yield f"{model.model}: many episodes were cut off: {told}"
