"""From what happened in a run to what the user and the shell are told."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from asyncrl.cli.console import error_console
from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.run.stopping import stopped_by

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.core.recipe.schema import Recipe
    from asyncrl.run.folder import RunFolder
    from asyncrl.run.live_view import LiveView
    from asyncrl.run.summary import Summary

    Run = Callable[[Recipe, RunFolder, LiveView], Summary]

logger = logging.getLogger(__name__)


class ExitCode(IntEnum):
    """What the shell gets."""

    COMPLETED = 0
    FAILED = 1
    REFUSED = 2
    """The recipe or the command line is wrong; nothing was started."""
    INTERRUPTED = 130
    """By Ctrl-C, whose number shells report, or by SIGTERM."""


def show_refusal(error: RecipeError) -> ExitCode:
    """Tell what is wrong with the recipe, or with what it is asked for, all of it."""
    console = error_console()
    console.print(Text("Refused, nothing was started:", "bold red"))
    for problem in (str(error), *getattr(error, "__notes__", ())):
        console.print(Text(f"  {problem}"))
    return ExitCode.REFUSED


def show_system_failure(error: OSError | ImportError | MemoryError) -> ExitCode:
    """Tell what the system refused where there was no run that could have ended with it as its reason."""
    match error:
        case OSError(strerror=str(problem)):
            reason = f"{error.filename}: {problem}" if error.filename else problem
        case ImportError():
            reason = f"{error}; is the installation whole, and is there memory for it (ulimit -v)?"
        case _:
            reason = f"out of memory {error}".strip() + "; see ulimit -v"
    error_console().print(Text.assemble(("Failed", "bold red"), f": {reason}"))
    return ExitCode.FAILED


def run_to_end(run: Run, recipe: Recipe, folder: RunFolder, console: Console, *, before: Summary | None = None) -> ExitCode:
    """Run under the live view and show how it ended.

    A run that another process is driving is refused. ``run`` writes the summary itself and reports failures in it; should it
    raise nevertheless, that is made up for here. The traceback goes to the log, the terminal gets the message.

    Args:
        before: what the summary said of a run that is resumed now; the new one says no less.
    """
    from asyncrl.run.end_view import end_view
    from asyncrl.run.live_view import LiveView
    from asyncrl.run.summary import Status, Summary

    with ExitStack() as stack:
        log = folder.logs / "driver.log"
        try:
            stack.enter_context(folder.driven())
            stack.enter_context(_logging_to(log))
        except RecipeError as error:
            return show_refusal(error)
        if before is not None:
            _count_resume(folder)
        try:
            with LiveView(console, recipe.name) as view:
                summary = run(recipe, folder, view)
        except KeyboardInterrupt as interrupt:
            reason = str(interrupt) or stopped_by(signal.SIGINT)
            summary = _ended(Summary(status=Status.INTERRUPTED, reason=reason), before, folder)
        except Exception as error:
            logger.exception("the run failed")
            own = isinstance(error, AsyncRLError)
            reason = str(error) if own else f"unexpected {type(error).__name__}: {error}; see {log.name}"
            summary = _ended(Summary(status=Status.FAILED, reason=reason), before, folder)
    for part in end_view(summary, recipe, folder):
        # Sentences and paths are left in one piece for whoever copies or searches them.
        console.print(part, soft_wrap=isinstance(part, Text))
    return ExitCode[summary.status.name]


def _count_resume(folder: RunFolder) -> None:
    try:
        folder.count_resume()
    except OSError as error:
        # A run on a full disk waits for room, and a count is no reason to end it.
        logger.warning("this resume will not be counted by the next one: %s", error)


def _ended(summary: Summary, before: Summary | None, folder: RunFolder) -> Summary:
    """Recorded, with what the run had come to before."""
    return (summary if before is None else summary.going_on_from(before)).recorded(folder.summary)


class _LogFile(logging.FileHandler):
    """A full disk is no reason to write tracebacks over the live view, or to fail: what waits is written when there is room."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def _logging_to(file: Path) -> Iterator[None]:
    """All logging and warnings of this process go into a file: the terminal belongs to the live view.

    Raises:
        RecipeError: the file cannot be written to.
    """
    try:
        handler = _LogFile(file, encoding="utf-8")
    except OSError as error:
        raise RecipeError("", f"cannot write {str(file)!r}: {error.strerror}", "make it writable for yourself") from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
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
