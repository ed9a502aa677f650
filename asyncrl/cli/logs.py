"""``asyncrl logs``: shows the logs of all processes of a run, merged by time."""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING

from rich.text import Text

from asyncrl.cli.arguments import command, run_to_read
from asyncrl.cli.console import say
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.errors import RecipeError

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.arguments import Commands
    from asyncrl.run.folder.run_folder import RunFolder

_DESCRIPTION = """\
Show the logs of all processes of a run, merged by time, each line with the
name of its process. Works for a live run and for one that has ended. Several
runs are shown one after the other."""

_STYLES = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "bold red"}


def add_command(commands: Commands) -> None:
    """Add the command ``logs``."""
    parser = command(commands, "logs", "show a run's logs", _DESCRIPTION, run)
    parser.add_argument("folders", metavar="RUN", type=run_to_read, nargs="+", help="the run's folder")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    parser.add_argument(
        "--errors", action="store_true", help="only errors, with their tracebacks, and warnings, but for those of libraries"
    )


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Show the records one after the other."""
    from asyncrl.run.folder.run_folder import RunFolder

    folders = [RunFolder.find(folder) for folder in arguments.folders]
    if arguments.follow and len(folders) > 1:
        raise RecipeError("--follow", f"{len(folders)} runs are named, and one can be followed", "name one")
    for folder in folders:
        if len(folders) > 1:
            console.print(Text(str(folder.path), "bold"), soft_wrap=True)
        _show(folder, arguments, console)
    return ExitCode.COMPLETED


def _show(folder: RunFolder, arguments: argparse.Namespace, console: Console) -> None:
    """Show the logs of one run."""
    from asyncrl.run.views.logs import follow_logs, read_logs

    shown_any = False
    width = max((len(path.stem) for path in folder.logs.glob("*.log")), default=0)
    for record in follow_logs(folder) if arguments.follow else read_logs(folder):
        least = logging.ERROR if record.of_library else logging.WARNING
        if arguments.errors and record.level < least:
            continue
        shown = "\n".join(f"{record.process:<{width}}  {line}" for line in record.lines)
        console.out(shown, style=_STYLES.get(record.level), highlight=False)
        shown_any = True
        if console.quiet:  # the reader has gone
            return
    if not shown_any:
        what = "errors or warnings of the run's own processes" if arguments.errors else "lines"
        say(f"The logs of {folder.path} hold no {what}.")
