"""``asyncrl attach``: the live view of a run that another process drives; and ``asyncrl stop``, which ends one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from asyncrl.cli.arguments import command, run_or_address
from asyncrl.cli.console import say
from asyncrl.cli.outcome import ExitCode, show_error
from asyncrl.core.errors import AsyncRLError, RecipeError

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.arguments import Commands
    from asyncrl.run.measures.events import RunEvent
    from asyncrl.run.views.live_view import LiveView

_ATTACH = """\
Show the live view of a run that goes on in another terminal, or that was
launched with --detach. Ctrl-C leaves it, and the run goes on. Of a run that has
ended, its end is shown."""

_STOP = """\
Stop a run in order, as Ctrl-C does: it ends within deadlines.shutdown, and can be
resumed. With --finish it ends after the training step under way, or after one if
it is starting, as if that were its last: the last version is evaluated, and the
model is saved."""


def add_command(commands: Commands) -> None:
    """Add the commands ``attach`` and ``stop``."""
    parser = command(commands, "attach", "watch a run", _ATTACH, run_attach)
    parser.add_argument("folder", metavar="RUN", type=Path, help="the run's folder")
    parser = command(commands, "stop", "stop a run", _STOP, run_stop)
    parser.add_argument(
        "folders", metavar="RUN", type=run_or_address, nargs="+", help="the run's folder, or its address in an object store"
    )
    parser.add_argument("--finish", action="store_true", help="evaluate the last version and save the model first")


def run_attach(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Show what happens until the run ends."""

    from asyncrl.run.folder.run_folder import RunFolder
    from asyncrl.run.measures.event_log import follow_events, read_end
    from asyncrl.run.recipe.compose import compose
    from asyncrl.run.views.end_view import end_view
    from asyncrl.run.views.live_view import LiveView

    folder = RunFolder.find(arguments.folder)
    if folder.is_driven:
        try:
            with LiveView(console, folder.path.name) as view:
                for event in follow_events(folder):
                    show(event, view)
        except KeyboardInterrupt:
            say(f"The run goes on: asyncrl stop {arguments.folder} ends it.")
            return ExitCode.INTERRUPTED
    try:
        summary = read_end(folder)
    except (OSError, ValueError, RecursionError) as error:
        problem = f"the run in {str(arguments.folder)!r} was killed: it does not go on, and has no summary"
        raise RecipeError("", problem, f"resume it: asyncrl launch --resume {arguments.folder}") from error
    for part in end_view(summary, compose(str(folder.recipe)), folder):
        console.print(part, soft_wrap=isinstance(part, Text))
    return ExitCode[summary.status.name]


def show(event: RunEvent, view: LiveView) -> None:
    """Show one event as the run's own terminal does."""
    from asyncrl.run.measures.events import NoteSaid, PhaseAdvanced, PhaseBegun, StepDone

    match event:
        case PhaseBegun(text=text):
            view.phase(text)
        case PhaseAdvanced(fraction=fraction, text=text):
            view.advance(fraction, text)
        case NoteSaid(text=text, level=level):
            view.note(text, level)
        case StepDone(progress=progress):
            view.update(progress)
        case _:  # evaluations, publications and warnings are in notes and progress
            pass


def run_stop(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Stop runs, one after the other; one that cannot be stopped does not keep the others."""

    code = ExitCode.COMPLETED
    for named in arguments.folders:
        try:
            if isinstance(named, str):
                _stop_stored(named, arguments, console)
            else:
                _stop_here(named, arguments, console)
        except AsyncRLError as error:
            code = show_error(error)
    return code


def _stop_here(named: Path, arguments: argparse.Namespace, console: Console) -> None:
    import asyncio

    from asyncrl.run.control import finish
    from asyncrl.run.folder.run_folder import RunFolder
    from asyncrl.run.host.stopping import stop

    if arguments.finish:
        when = asyncio.run(finish(named, "asyncrl stop --finish"))
        console.print(Text(f"{named} {when}"), soft_wrap=True)
    else:
        stop(RunFolder.find(named))
        console.print(Text(f"{named} has stopped; go on with: asyncrl launch --resume {named}"), soft_wrap=True)


def _stop_stored(address: str, arguments: argparse.Namespace, console: Console) -> None:

    from asyncrl.core.storage.errors import StorageError
    from asyncrl.core.storage.storage import Storage
    from asyncrl.run.storage.driver_mark import ask_to_end

    if arguments.finish:
        raise RecipeError("--finish", f"{address} is an address", "name the run's folder, on the machine that drives it")
    say("A driver looks every 20 s whether it is asked to end.")
    try:
        ask_to_end(Storage(address))
    except StorageError as error:
        raise error.of_key("") from error
    console.print(Text(f"{address} is stopping; go on with: asyncrl launch --resume {address}"), soft_wrap=True)
