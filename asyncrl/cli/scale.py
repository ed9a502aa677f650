"""``asyncrl scale``: changes how many engines a pool of a run has, while the run goes on."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rich.text import Text

from asyncrl.cli.arguments import command, run_here, whole_number
from asyncrl.cli.outcome import ExitCode

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.arguments import Commands

_DESCRIPTION = """\
Change how many engines a pool of a run has, while the run goes on. Newcomers
load the current weights before they play anything. Those that end hand their
episodes back, which are played by others at once. The run's recipe.yaml says so
from then on, and a resume begins with as many."""

_EXAMPLES = """\
examples:
  asyncrl scale runs/NAME-TIME generators=4
  asyncrl scale runs/NAME-TIME small=2         a pool of generators.pools"""


def add_command(commands: Commands) -> None:
    """Add the command ``scale``."""
    parser = command(commands, "scale", "change how many engines a running run has", _DESCRIPTION, run, epilog=_EXAMPLES)
    parser.add_argument("folder", metavar="RUN", type=run_here, help="the run's folder")
    parser.add_argument("size", metavar="POOL=N", type=_size, help="the pool, and how many engines it is to have")


def _size(text: str) -> tuple[str, int]:
    pool, equals, number = text.partition("=")
    if not pool or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} must be a pool and a number, such as generators=4")
    return pool, whole_number(number)


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Ask the run's driver, and show its answer."""
    import asyncio

    from asyncrl.run.control import scale

    console.print(Text(asyncio.run(scale(arguments.folder, *arguments.size))), soft_wrap=True)
    return ExitCode.COMPLETED
