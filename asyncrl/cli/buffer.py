"""``asyncrl buffer``: shows what the replay buffer of a run holds, and what became of every group that it issued."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.text import Text

from asyncrl.cli.console import error_console
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.errors import AsyncRLError, RecipeError

_DESCRIPTION = """\
Show what the replay buffer of a run holds, by version and state; why groups
were not trained; and the lengths of trained episodes beside those of all
finished ones. Only reads the journal, so the run may be running or over."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``buffer``."""
    parser = commands.add_parser(
        "buffer", help="show a replay buffer", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", metavar="RUN", type=Path, help="the run's folder")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Read the run's journal and show the report."""
    import msgspec

    from asyncrl.run.buffer.inspect_buffer import inspect_run
    from asyncrl.run.views.buffer_view import buffer_view

    try:
        report = inspect_run(arguments.folder)
    except AsyncRLError as error:
        error_console().print(Text(str(error)))
        return ExitCode.REFUSED if isinstance(error, RecipeError) else ExitCode.FAILED
    if arguments.json:
        console.out(msgspec.json.format(msgspec.json.encode(report), indent=2).decode(), highlight=False)
    else:
        console.print(buffer_view(report))
    return ExitCode.COMPLETED
