"""``asyncrl report``: makes one HTML file of one run or of several."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from asyncrl.cli.arguments import command
from asyncrl.cli.outcome import ExitCode

if TYPE_CHECKING:
    from asyncrl.cli.arguments import Commands

_DESCRIPTION = """\
Write a report on one run, or on several side by side, as one HTML file that
loads nothing: curves, staleness, who worked and who waited, lengths, rewards,
slowest tools and tasks, failures, and kept episodes token by token. Only reads
the runs, which may be live."""


def add_command(commands: Commands) -> None:
    """Add the command ``report``."""
    parser = command(commands, "report", "write a report as HTML", _DESCRIPTION, run)
    parser.add_argument("folders", metavar="RUN", type=Path, nargs="+", help="the folders of the runs")
    parser.add_argument("--output", metavar="FILE", type=Path, help="where to write it; RUN/report.html of the first by default")


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Read the runs, and write the page."""
    from asyncrl.run.report.page import report_page
    from asyncrl.run.report.run_record import RunRecord

    runs = [RunRecord(folder) for folder in arguments.folders]
    output: Path = arguments.output or runs[0].folder.path / "report.html"
    output.write_text(report_page(runs), encoding="utf-8")
    for record in runs:
        for sentence in record.missing:
            console.print(Text(f"{record.name}: {sentence}", "yellow"), soft_wrap=True)
    console.print(Text.assemble(("Report: ", "dim"), str(output)), soft_wrap=True)
    return ExitCode.COMPLETED
