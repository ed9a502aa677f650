"""``asyncrl buffer``: shows what the replay buffer of a run holds, and what became of every group that it issued."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rich.console import Console

from asyncrl.cli.arguments import command, run_here
from asyncrl.cli.outcome import ExitCode

if TYPE_CHECKING:
    from asyncrl.cli.arguments import Commands

_DESCRIPTION = """\
Show what the replay buffer of a run holds, by version and state; why groups
were not trained; and the lengths of trained episodes beside those of all
finished ones. Only reads the journal, so the run may be running or over."""


def add_command(commands: Commands) -> None:
    """Add the command ``buffer``."""
    parser = command(commands, "buffer", "show a replay buffer", _DESCRIPTION, run)
    parser.add_argument("folder", metavar="RUN", type=run_here, help="the run's folder")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Read the run's journal and show the report."""
    import msgspec

    from asyncrl.run.buffer.inspect_buffer import inspect_run
    from asyncrl.run.views.buffer_view import buffer_view

    report = inspect_run(arguments.folder)
    if arguments.json:
        console.out(msgspec.json.format(msgspec.json.encode(report), indent=2).decode(), highlight=False)
    else:
        console.print(buffer_view(report))
    return ExitCode.COMPLETED
