"""What a user sees when a run has ended: first the reason, if there is one; last, where to look and how to go on."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from asyncrl.core.errors import EnvironmentBroken, FailureKind
from asyncrl.core.measures.buffer_statistics import GroupState, LedgerCounts
from asyncrl.core.measures.units import duration, percent, quantity
from asyncrl.core.plug_ins.error_counts import CountedError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.text import listed, pluralize, without_passwords
from asyncrl.episodes.visible import visible
from asyncrl.run.folder.buffer_folder import journal_of
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.summary import Status, Summary, training_reward
from asyncrl.run.tracking.tracker import tracking_uri

_FILE = "sqlite:///"
"""What the address of a database in a file begins with, before its path."""
ERRORS_SHOWN = 5
"""How many errors of episodes are listed; the summary has them all."""
_STYLE = {Status.COMPLETED: "bold green", Status.INTERRUPTED: "bold yellow", Status.FAILED: "bold red"}


def end_view(summary: Summary, recipe: Recipe, folder: RunFolder) -> list[RenderableType]:
    """Return reason, table and folders, to be printed one after the other. A run that trained no step has no table."""
    lines: list[RenderableType] = []
    if summary.reason:
        lines.append(Text.assemble((summary.status.capitalize(), _STYLE[summary.status]), f": {visible(summary.reason)}"))
    if summary.steps:
        lines.append(_table(summary, recipe.name))
        lines += [Text.assemble(("Warning", "bold yellow"), f": {visible(warning)}") for warning in summary.warnings]
        here = shlex.quote(near(folder.path))
        lines.append(place("Read its worst episodes", f"{_command('asyncrl')} show {here} --sort reward"))
        lines.append(place("See curves and times in one HTML file", f"{_command('asyncrl')} report {here}"))
        store = shlex.quote(_store(recipe, folder))
        lines.append(place("Compare runs, metric by metric", f"{_command('mlflow')} ui --backend-store-uri {store}"))
    lines += [Text(f"{_whose(error)}: {visible(str(error))}", "yellow") for error in summary.errors[:ERRORS_SHOWN]]
    if (more := len(summary.errors) - ERRORS_SHOWN) > 0:
        lines.append(Text(f"{more} other errors of episodes: see {folder.summary}", "yellow"))
    failed = summary.status is Status.FAILED
    lines.append(place("Logs", near(folder.logs)) if failed else place("Run folder", near(folder.path)))
    # A run that failed before its first training step would fail again: what is wrong is in the recipe or the machine.
    worth_resuming = summary.status is Status.INTERRUPTED or (failed and summary.steps > 0)
    if worth_resuming and journal_of(folder.path).is_dir():
        lines.append(place("Go on with", f"{_command('asyncrl')} launch --resume {shlex.quote(near(folder.path))}"))
    return lines


def _whose(error: CountedError) -> str:
    # What our own rewards raise on purpose, such as a judge's, is no fault of the code that called them.
    return "Episode failed" if error.kind == EnvironmentBroken.__name__ else "Error in your code"


def _command(name: str) -> str:
    """Return the command as the user can type it here, even if its virtual environment is not active."""
    beside = Path(sys.executable).with_name(name)
    if shutil.which(name) or not beside.is_file():
        return name
    return shlex.quote(os.path.relpath(beside) if _in_shells_folder() else str(beside))


def _in_shells_folder() -> bool:
    """Whether the user's shell is here. A run that is resumed works in the folder that it was launched in."""
    return os.environ.get("PWD") == os.getcwd()


def _store(recipe: Recipe, folder: RunFolder) -> str:
    """The address of the metrics; that of a file is relative where its path can be."""
    uri = tracking_uri(recipe.tracking, folder)
    file = uri.removeprefix(_FILE)
    return without_passwords(uri) if file == uri else _FILE + near(Path(file))


def near(path: Path) -> str:
    """Return a path as the user can type it: a relative one, if it lies below the folder that the user's shell is in."""
    return str(path.relative_to(os.getcwd()) if _in_shells_folder() and path.is_relative_to(os.getcwd()) else path)


def place(what: str, where: str) -> Text:
    """Return a line that says where something is, or what to type for it."""
    return Text.assemble((f"{what}: ", "dim"), where, no_wrap=True)


def _spread(summary: Summary) -> str:
    """Say so if evaluations were of several policy versions."""
    versions = summary.evaluation.most_versions
    return f"; episodes of up to {versions} policy versions (evaluation.pinned is off)" if versions > 1 else ""


def _left_out(skipped: Sequence[int]) -> str:
    """Name the evaluations that were due and left out."""
    return f"; {pluralize(len(skipped), 'evaluation')} left out, of versions {listed(skipped)}" if skipped else ""


def _table(summary: Summary, name: str) -> Table:
    title = Text.assemble((f"{name} ", "bold"), (summary.status.value, _STYLE[summary.status]))
    table = Table(title=title, title_justify="left", show_header=False, border_style="dim", box=box.ROUNDED)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row(
        "training steps",
        f"{summary.steps} in {duration(summary.training_s)}, {summary.versions_published} versions published; "
        f"{duration(summary.wall_s)} with making the model, starting and ending",
    )
    table.add_row("training reward", training_reward(summary))
    table.add_row(
        "evaluation",
        f"{_reward(summary.evaluation.first)} at first, {_reward(summary.evaluation.last)} at last{_spread(summary)}"
        f"{_left_out(summary.evaluation.skipped)}",
    )
    stale = summary.staleness
    table.add_row("staleness", f"{stale.mean:.2f} on average, at most {stale.max:g} of {stale.bound} policy versions")
    tokens = summary.tokens
    table.add_row("tokens", f"{quantity(tokens.generated)} generated, {quantity(tokens.trained)} trained")
    table.add_row("trajectories", f"{summary.trajectories_per_s:.1f} a second")
    table.add_row("idle", f"generators {percent(summary.idle.generators)}, learner {percent(summary.idle.learner)}")
    if summary.bottleneck is not None:
        table.add_row("bottleneck", summary.bottleneck.sentence)
    table.add_row("groups", _groups(summary.ledger))
    lost = f"{GroupState.FAILED}: {FailureKind.INFRASTRUCTURE.description}"
    if times := summary.ledger.reasons.get(lost):
        example = summary.ledger.examples.get(lost)
        last = f"; the last: {visible(example)}" if example else ""
        table.add_row("played again", f"{times:,} times a group that lost its engine, host or service, or was handed back{last}")
    if summary.too_long:
        left_out = ", ".join(f"{count:,} of {source}" for source, count in summary.too_long.items())
        table.add_row("tasks left out", f"{visible(left_out)}: their prompts leave no room for a turn in model.max_context")
    return table


def _groups(ledger: LedgerCounts) -> str:
    # Failed groups are those that lost episodes: with a generator that died, or handed back when the run was stopped.
    parts = ", ".join(
        f"{count} {'with missing episodes' if state is GroupState.FAILED else state.value}"
        for state in GroupState
        if (count := getattr(ledger, state.value))
    )
    return f"{ledger.issued} issued: {parts}" if parts else "none issued"


def _reward(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
