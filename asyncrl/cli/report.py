"""``asyncrl report``: makes one HTML file of one run or of several."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from asyncrl.cli.arguments import command, run_to_read, writable_file
from asyncrl.cli.outcome import ExitCode
from asyncrl.cli.written_file import write_file
from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_errors import refusing

if TYPE_CHECKING:
    from asyncrl.cli.arguments import Commands

_DESCRIPTION = """\
Write a report on one run, or on several side by side, as one HTML file that
loads nothing: curves, staleness, who worked and who waited, lengths, rewards,
slowest tools and tasks, failures, and kept episodes token by token; or on a
sweep: its settings, and which differ by more than seeds do. Only reads the runs,
which may be live."""


def add_command(commands: Commands) -> None:
    """Add the command ``report``."""
    parser = command(commands, "report", "write a report as HTML", _DESCRIPTION, run)
    parser.add_argument("folders", metavar="RUN", type=run_to_read, nargs="+", help="the folders of the runs, or that of a sweep")
    parser.add_argument(
        "--output", metavar="FILE", type=writable_file, help="where to write it; RUN/report.html of the first by default"
    )


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Read the runs, and write the page."""
    from asyncrl.run.report.page import report_page
    from asyncrl.run.report.run_record import RunRecord, name_apart
    from asyncrl.sweeps.sweep_folder import SweepFolder

    if any(map(SweepFolder.is_one, arguments.folders)):
        return _report_sweep(arguments, console)
    runs = list({record.folder.path: record for record in map(RunRecord, arguments.folders)}.values())  # each once
    name_apart(runs)
    output: Path = arguments.output or runs[0].folder.path / "report.html"
    _write(report_page(runs), output)
    for record in runs:
        for sentence in record.missing:
            console.print(Text(f"{record.name}: {sentence}", "yellow"), soft_wrap=True)
    return _written(output, console)


def _report_sweep(arguments: argparse.Namespace, console: Console) -> ExitCode:
    from asyncrl.sweeps.sweep_folder import SweepFolder
    from asyncrl.sweeps.sweep_page import sweep_page

    if len(arguments.folders) > 1:
        problem = "the folder of a sweep is named among others"
        raise RecipeError("", problem, "report on it alone, or name the folders of runs in it")
    folder = SweepFolder.find(arguments.folders[0])
    output: Path = arguments.output or folder.report
    _write(sweep_page(folder), output)
    return _written(output, console)


def _write(page: str, output: Path) -> None:
    with refusing(f"write {str(output)!r}", "name a file that you may write to by --output FILE"):
        write_file(output, page.encode())


def _written(output: Path, console: Console) -> ExitCode:
    console.print(Text.assemble(("Report: ", "dim"), str(output)), soft_wrap=True)
    return ExitCode.COMPLETED
