"""Tells the user and the shell how a command ended."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

from rich.text import Text

from asyncrl.cli.console import error_console
from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.files.file_errors import explained, refusing
from asyncrl.core.process.log_format import LogFormatter
from asyncrl.run.host.signals import stopped_by

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.core.recipe.schema import Recipe
    from asyncrl.run.folder.run_folder import RunFolder
    from asyncrl.run.measures.summary import Summary
    from asyncrl.run.views.live_view import LiveView

    Run = Callable[[Recipe, RunFolder, LiveView], Summary]

logger = logging.getLogger(__name__)


class ExitCode(IntEnum):
    """Exit codes of the command."""

    COMPLETED = 0
    FAILED = 1
    REFUSED = 2
    """The recipe or the command line is wrong; nothing was started."""
    INTERRUPTED = 130
    """The run was ended by Ctrl-C or SIGTERM; shells use this number for Ctrl-C."""


def show_refusal(error: RecipeError) -> ExitCode:
    """Show everything that is wrong with the recipe or the command line."""
    console = error_console()
    console.print(Text("Refused, nothing was started:", "bold red"))
    for problem in (str(error), *getattr(error, "__notes__", ())):
        console.print(Text(indent(problem, "  ")))
    return ExitCode.REFUSED


def show_error(error: AsyncRLError) -> ExitCode:
    """Show an error that occurred outside a run."""
    error_console().print(Text(str(error)))
    return ExitCode.REFUSED if isinstance(error, RecipeError) else ExitCode.FAILED


def show_system_failure(error: OSError | ImportError | MemoryError) -> ExitCode:
    """Show an error of the operating system, or of an import, that occurred outside a run."""
    match error:
        case OSError():
            reason = explained(error)
        case ImportError():
            reason = f"{error}; check that the installation is complete, and that there is enough memory (ulimit -v)"
        case _:
            reason = f"out of memory {error}".strip() + "; see ulimit -v"
    error_console().print(Text.assemble(("Failed", "bold red"), f": {reason}"))
    return ExitCode.FAILED


def run_to_end(
    run: Run, recipe: Recipe, folder: RunFolder, console: Console, *, before: Summary | None = None, quiet: bool = False
) -> ExitCode:
    """Call ``run`` under the live view and show how it ended.

    A run that another process is driving is refused. ``run`` writes the summary itself, even when the run fails. If it raises
    nevertheless, the summary is written here, the traceback goes to the log, and the message to the terminal.

    Args:
        before: the summary of the run that is resumed; the new summary includes what it reports.
        quiet: show only warnings, and in one line how it ended.
    """
    from asyncrl.run.host.notification import sentence
    from asyncrl.run.measures.event_log import EventLog
    from asyncrl.run.measures.events import RunEnded
    from asyncrl.run.measures.summary import Status, Summary
    from asyncrl.run.views.end_view import end_view
    from asyncrl.run.views.live_view import LiveView

    with ExitStack() as stack:
        log = folder.logs / "driver.log"
        try:
            stack.enter_context(folder.driven())
            stack.enter_context(logging_to(log))
        except RecipeError as error:
            return show_refusal(error)
        if before is not None:
            _count_resume(folder)
        events = EventLog(folder.events)
        try:
            with LiveView(console, recipe.name, tell=events.tell, quiet=quiet) as view:
                summary = run(recipe, folder, view)
        except KeyboardInterrupt as interrupt:
            reason = str(interrupt) or stopped_by(signal.SIGINT)
            summary = _ended(Summary(status=Status.INTERRUPTED, reason=reason), before, folder)
        except Exception as error:
            logger.exception("the run failed")
            own = isinstance(error, AsyncRLError)
            reason = str(error) if own else f"unexpected {type(error).__name__}: {error}; see {log.name}"
            summary = _ended(Summary(status=Status.FAILED, reason=reason), before, folder)
        events.tell(RunEnded(status=summary.status, reason=summary.reason, steps=summary.steps))
        problems = _notify(recipe, summary, folder)
    if quiet:
        console.print(Text(sentence(recipe.name, summary.status, summary.steps, summary.reason, folder.path)), soft_wrap=True)
    else:
        for part in end_view(summary, recipe, folder):
            console.print(part, soft_wrap=isinstance(part, Text))
    for problem in problems:
        console.print(Text.assemble(("Warning", "bold yellow"), f": {problem}"), soft_wrap=True)
    return ExitCode[summary.status.name]


def _notify(recipe: Recipe, summary: Summary, folder: RunFolder) -> list[str]:
    """Tell whom the recipe names that the run has ended, and return what went wrong with that."""
    from asyncrl.run.host.notification import Ending, notify, sentence
    from asyncrl.run.measures.summary import Status

    ending = Ending(
        text=sentence(recipe.name, summary.status, summary.steps, summary.reason, folder.path),
        name=recipe.name,
        run=str(folder.path),
        status=summary.status,
        reason=summary.reason,
        steps=summary.steps,
        reward=summary.reward.last,
        evaluation=summary.evaluation.last,
    )
    problems = notify(recipe.notify, ending, summary.status is Status.FAILED)
    for problem in problems:
        logger.warning("%s", problem)
    return problems


def _count_resume(folder: RunFolder) -> None:
    try:
        folder.count_resume()
    except OSError as error:
        # On a full disk a run pauses; a count that cannot be written is no reason to end it.
        logger.warning("this resume could not be noted in the run folder, so later summaries may not count it: %s", error)


def _ended(summary: Summary, before: Summary | None, folder: RunFolder) -> Summary:
    """Write and return the summary, with what the run had reached before."""
    return (summary if before is None else summary.going_on_from(before)).recorded(folder.summary)


class _LogFile(logging.FileHandler):
    """A log file that ignores errors of the disk, which may be full: they neither raise nor write over the live view."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def logging_to(file: Path) -> Iterator[None]:
    """Send all logging and warnings of this process to a file, since the terminal belongs to the live view.

    Raises:
        RecipeError: the file cannot be written to.
    """
    with refusing(f"write {str(file)!r}", "give yourself permission to write it"):
        handler = _LogFile(file, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(LogFormatter())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()
