"""``asyncrl runs``: a table of runs; and ``asyncrl tag``, which labels one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from asyncrl.cli.arguments import command, count
from asyncrl.cli.console import PatientConsole
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.text import as_the_program_names, writable_json
from asyncrl.episodes.visible import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from asyncrl.cli.arguments import Commands
    from asyncrl.run.measures.run_list import RunRow

_DESCRIPTION = """\
List the runs in a folder, the newest first: how each goes or ended, how far it
came, its rewards, and the keys that it was launched with. A run that has no end
and that nobody drives was killed; it can be resumed."""

_EXAMPLES = """\
examples:
  asyncrl runs                               those in runs/
  asyncrl runs --status running --status killed
  asyncrl runs --where learner.lr=1e-4 --sort evaluation
  asyncrl runs other/runs --tag paper --json | jq .run"""

_TAG = """\
Give a run tags and a note, or take tags away; without either, show what it has.
`asyncrl runs --tag` finds runs by them."""

PIPE_WIDTH = 200
"""Columns of the table where it is no terminal that shows it."""
NARROW = 120
"""A terminal of fewer columns has no room for the columns of what was changed and of tags."""
SORTS = ("launched", "name", "status", "step", "reward", "evaluation")
STATES = ("running", "completed", "interrupted", "failed", "killed", "unreadable")
_SILENT = ("=null", ".kind='class'", ".kind='custom'")
"""How changes end that say nothing by themselves, such as those that make room for a function of a program."""
_STYLES = {
    "running": "bold cyan",
    "completed": "green",
    "interrupted": "yellow",
    "failed": "red",
    "killed": "red",
    "unreadable": "red",
}


def add_command(commands: Commands) -> None:
    """Add the commands ``runs`` and ``tag``."""
    parser = command(commands, "runs", "list runs", _DESCRIPTION, run, epilog=_EXAMPLES)
    parser.add_argument("folders", metavar="FOLDER", type=Path, nargs="*", help="where runs are (default runs)")
    parser.add_argument(
        "--sort", choices=SORTS, default="launched", help="the newest, highest or furthest first; default launched"
    )
    parser.add_argument("--status", choices=STATES, action="append", help="only runs of this status; may be given again")
    parser.add_argument("--tag", metavar="TAG", action="append", default=[], help="only runs with this tag, or all of these")
    parser.add_argument(
        "--where", metavar="KEY=VALUE", type=_condition, action="append", default=[], help="only runs whose recipe has this value"
    )
    parser.add_argument("--limit", metavar="N", type=count, help="show this many at most")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each")
    parser = command(commands, "tag", "label a run", _TAG, run_tag)
    parser.add_argument("folder", metavar="RUN", type=Path, help="the run's folder")
    parser.add_argument("tags", metavar="TAG", nargs="*", help="tags to add")
    parser.add_argument("--remove", metavar="TAG", action="append", default=[], help="take this tag away")
    parser.add_argument("--note", metavar="TEXT", help="what to remember of the run")


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """List the runs that were asked for."""
    from asyncrl.episodes.visible import visible_json
    from asyncrl.run.measures.run_list import row_of, run_folders, sorted_rows, with_value

    found = (place for folder in arguments.folders or [Path("runs")] for place in run_folders(folder))
    places = list({place.resolve(): place for place in found}.values())  # a folder may be named twice, or be a link
    for key, values in arguments.where:
        places = with_value(places, key, values)
    rows = [row for row in map(row_of, places) if _is_chosen(row, arguments)]
    shown = sorted_rows(rows, arguments.sort)[: arguments.limit]
    if arguments.json:
        for row in shown:
            console.out(visible_json(writable_json(row).decode()), highlight=False)
    else:
        wide = console if console.is_terminal else PatientConsole(width=PIPE_WIDTH)
        wide.print(_table(shown, wide.width < NARROW) if shown else "no such runs")
        if isinstance(wide, PatientConsole) and wide.failure is not None:
            raise wide.failure
    return ExitCode.COMPLETED


def run_tag(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Change the labels of a run, and show them."""

    from asyncrl.core.files.file_errors import refusing
    from asyncrl.run.folder.labels import Labels, change_labels
    from asyncrl.run.folder.run_folder import RunFolder

    def changed(before: Labels) -> Labels:
        labels = before.with_tags(arguments.tags, arguments.remove)
        note = labels.note if arguments.note is None else arguments.note
        return Labels(labels.recipe, labels.overrides, labels.tags, note)

    file = RunFolder.find(arguments.folder).labels
    with refusing(f"write {str(file)!r}", "label it as a user who may write there, on a file system that has locks"):
        labels = change_labels(file, changed)
    console.print(Text(f"tags: {visible(', '.join(labels.tags)) or 'none'}"))
    console.print(Text(f"note: {visible(labels.note) or 'none'}"), soft_wrap=True)
    return ExitCode.COMPLETED


def _is_chosen(row: RunRow, arguments: argparse.Namespace) -> bool:
    right_status = not arguments.status or row.status in arguments.status
    return right_status and set(arguments.tag) <= set(row.tags)


def _table(rows: Sequence[RunRow], narrow: bool) -> Table:
    """The runs, one a row; where the terminal is narrow, what was changed and its labels stand below a run's name."""
    from rich import box
    from rich.table import Table

    from asyncrl.core.measures.units import percent

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("run", no_wrap=not narrow, overflow="fold")
    table.add_column("status")
    for title in ("step", "reward", "evaluation"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in () if narrow else ("changed", "tags and note"):
        table.add_column(title, overflow="fold")
    for row in rows:
        done = f"{row.step}/{row.steps}" + (f" {percent(row.step / row.steps)}" if row.status == "running" and row.steps else "")
        recipe = row.recipe if not row.name.startswith(Path(row.recipe).stem) else ""
        changes = [as_the_program_names(each) for each in (recipe, *row.changed)]
        changed = "  ".join(each for each in changes if each and not each.endswith(_SILENT) and not each.startswith("run_dir="))
        labels = "  ".join((*(f"#{tag}" for tag in row.tags), *filter(None, [row.note])))
        name, further = Text(visible(row.name)), [Text(visible(changed), "dim"), Text(visible(labels))]
        if narrow:
            name, further = Text("\n").join([name, *filter(None, further)]), []
        figures = (done, _figure(row.reward), _figure(row.evaluation))
        table.add_row(name, Text(row.status, _STYLES[row.status]), *figures, *further)
    return table


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _condition(text: str) -> tuple[str, tuple[Any, ...]]:
    """A key, and the values that are meant: of YAML, which takes more for no text than recipes do, and the text itself."""
    import yaml

    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} must be a key and its value, such as learner.lr=1e-4")
    try:
        return key, (float(value), value)  # YAML takes 1e-4 for a text
    except ValueError:
        pass
    try:
        return key, (yaml.safe_load(value), value)
    except yaml.YAMLError as error:
        raise argparse.ArgumentTypeError(f"{value!r} is no value in YAML; put it into quotes if it is a text") from error
