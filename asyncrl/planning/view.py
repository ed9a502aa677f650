"""Shows a plan in the terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncrl.core.measures.units import duration, memory, percent
from asyncrl.planning.plan_request import PlanAnswer
from asyncrl.planning.prediction import INTERVALS, Figure, Prediction
from asyncrl.run.report.figures import number

FEW = 3
"""Up to so many points are shown with everything; more of them in one table."""


def plan_answer_view(answer: PlanAnswer) -> RenderableType:
    """Return the tables of an answer, its verdict, and what it stands on."""
    lines = [Text(INTERVALS, "dim"), Text(f"{answer.best.name}: {answer.best.bottleneck}"), Text(answer.verdict, "bold")]
    lines += [Text(f"Note: {note}", "yellow") for note in answer.notes]
    lines += [Text(f"Refused: {each.name}: {each.why}", "yellow") for each in answer.refused]
    shown = _details(answer.every) if len(answer.points) <= FEW else _table(answer)
    return Group(shown, *lines, Text(), _rates(answer))


def with_interval(figure: Figure) -> str:
    """A figure and its interval."""
    if figure.high - figure.low < 5e-4 * max(abs(figure.mean), 1e-9):
        return number(figure.mean)
    return f"{number(figure.mean)} ({number(figure.low)} to {number(figure.high)})"


def _share(figure: Figure) -> str:
    return f"{percent(figure.mean)} ({100 * figure.low:.0f} to {100 * figure.high:.0f})"


def _histogram(prediction: Prediction) -> str:
    return ", ".join(f"{age}: {percent(share)}" for age, share in prediction.histogram.items() if share >= 0.005)


def _details(predictions: Sequence[Prediction]) -> Table:
    table = Table(title="Prediction", title_justify="left", border_style="dim", box=box.ROUNDED)
    table.add_column("")
    for each in predictions:
        table.add_column(each.name, justify="right", overflow="fold")
    rows = {
        "trajectories/s": [with_interval(each.trajectories_per_s) for each in predictions],
        "trained tokens/s": [with_interval(each.trained_tokens_per_s) for each in predictions],
        "training step": [duration(each.step_s.mean) for each in predictions],
        "idle generators": [_share(each.idle_generators) for each in predictions],
        "idle learner": [_share(each.idle_learner) for each in predictions],
        "staleness, mean": [with_interval(each.staleness_mean) for each in predictions],
        "staleness, largest": [str(each.staleness_max) for each in predictions],
        "tokens by staleness": [_histogram(each) for each in predictions],
        "tokens too old": [percent(each.masked.mean) for each in predictions],
        "groups given up": [percent(each.dropped.mean) for each in predictions],
        "length, trained over issued": [number(each.length_bias.mean) for each in predictions],
        "pipeline depth": [number(each.depth) for each in predictions],
    }
    if any(each.start_s for each in predictions):
        rows["until the first step"] = [duration(each.start_s) for each in predictions]
    if any(each.gpus for each in predictions):
        rows["GPUs"] = [str(each.gpus) for each in predictions]
    for part in dict.fromkeys(part for each in predictions for part in each.memory):
        rows[f"memory, {part}"] = [memory(each.memory[part]) if part in each.memory else "" for each in predictions]
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def _table(answer: PlanAnswer) -> Table:
    """One row for each prediction. Cells have two lines, and there are none between columns, so that 80 characters hold names and
    figures."""
    title = "Predictions, those worth choosing marked"
    table = Table(
        title=title, title_justify="left", border_style="dim", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )
    table.add_column("", overflow="fold")
    gpus = any(each.gpus for each in answer.every)
    columns = ("trajectories\na second", "tokens/s,\nGPUs" if gpus else "tokens/s", "idle:\nengines\nlearner")
    for column in (*columns, "staleness,\nlargest", "too old,\ngiven up"):
        table.add_column(column, justify="right", overflow="fold")
    for place, each in enumerate(answer.every):
        chosen, speed = place in answer.front, each.trajectories_per_s
        table.add_row(
            f"{'*' if chosen else ' '} {each.name}",
            f"{number(speed.mean)}\n({number(speed.low)} to {number(speed.high)})",
            number(each.trained_tokens_per_s.mean) + (f"\n{each.gpus}" if gpus else ""),
            f"{percent(each.idle_generators.mean)}\n{percent(each.idle_learner.mean)}",
            f"{each.staleness_mean.mean:.2f}\n{each.staleness_max}",
            f"{percent(each.masked.mean)}\n{percent(each.dropped.mean)}",
            style="bold" if chosen else "",
        )
    return table


def _rates(answer: PlanAnswer) -> Table:
    table = Table(title=f"Rates, of {answer.basis}", title_justify="left", border_style="dim", box=box.ROUNDED)
    for column in ("rate", "value", "off by", "from"):
        table.add_column(column, justify="right" if column in ("value", "off by") else "left", overflow="fold")
    for name, rate in answer.rates.items():
        table.add_row(name, number(rate.value), "" if rate.error is None else percent(rate.error), rate.source)
    return table
