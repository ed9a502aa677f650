"""``asyncrl report``: makes one HTML file of one run or of several."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.text import Text

from asyncrl.cli.console import error_console
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.errors import AsyncRLError, RecipeError

_DESCRIPTION = """\
Write a report on one run, or on several side by side, as one HTML file that
loads nothing: curves, staleness, who worked and who waited, lengths, rewards,
slowest tools and tasks, failures, and kept episodes token by token. Only reads
the runs, which may be live."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``report``."""
    parser = commands.add_parser(
        "report",
        help="write a report as HTML",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", metavar="RUN", type=Path, nargs="+", help="the folders of the runs")
    parser.add_argument("--output", metavar="FILE", type=Path, help="where to write it; RUN/report.html of the first by default")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Read the runs, and write the page."""
    from asyncrl.run.report.page import report_page
    from asyncrl.run.report.run_record import RunRecord

    try:
        runs = [RunRecord(folder) for folder in arguments.folders]
        output: Path = arguments.output or runs[0].folder.path / "report.html"
        page = report_page(runs)
    except AsyncRLError as error:
        error_console().print(Text(str(error)))
        return ExitCode.REFUSED if isinstance(error, RecipeError) else ExitCode.FAILED
    output.write_text(page, encoding="utf-8")
    for record in runs:
        for sentence in record.missing:
            console.print(Text(f"{record.name}: {sentence}", "yellow"), soft_wrap=True)
    console.print(Text.assemble(("Report: ", "dim"), str(output)), soft_wrap=True)
    return ExitCode.COMPLETED
