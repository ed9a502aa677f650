"""Starts the process that drives a run for this one, shows what it prints, and waits for its end.

What always holds: when :func:`drive` returns or raises, the process has ended, and with it every process of the run. Nothing here
needs the main thread or an event loop, and a running one does not matter. But Python handles Ctrl-C in the main thread only, so a
call in another thread cannot be interrupted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, TextIO

import msgspec

from asyncrl.api.errors import NotThere, RunFailed, RunInterrupted
from asyncrl.api.messages import Answer, Began, Refused, Request
from asyncrl.core.errors import ComponentFailed, RecipeError

if TYPE_CHECKING:
    from asyncrl.api.evaluation import Evaluation
    from asyncrl.api.run import Run

SHOWING_S = 5.0
"""How long the last output may take to be shown; a process that was left behind could keep it open for ever."""


class Ended(NamedTuple):
    """How a process ended that had begun what was requested.

    Attributes:
        folder: what the process left behind.
        code: the exit code of the process; negative if a signal killed it.
    """

    folder: Path
    code: int

    def require_completed(self, made: Run | Evaluation) -> None:
        """Check the summary of ``made``, which is what lies in the folder.

        A driver that died early leaves the summary of an earlier attempt in place. So a summary counts only if the exit code says
        the same.

        Raises:
            RunFailed, RunInterrupted: it did not complete.
        """
        from asyncrl.cli.outcome import ExitCode
        from asyncrl.run.measures.summary import Status

        try:
            summary = made.summary
        except NotThere as error:
            raise RunFailed(self.folder, f"{_how_it_ended(self.code)} and left no summary") from error
        if self.code != ExitCode[summary.status.name]:
            raise RunFailed(self.folder, f"{_how_it_ended(self.code)}, but the summary says {summary.status}")
        match summary.status:
            case Status.INTERRUPTED:
                raise RunInterrupted(self.folder, summary.reason)
            case Status.FAILED:
                raise RunFailed(self.folder, summary.reason)


def drive(request: Request) -> Ended:
    """Have ``request`` done to its end, and return its folder, which says how it ended, and the exit code.

    Raises:
        RecipeError: it was refused; nothing was started.
        ComponentFailed: the process ended before it could begin.
        KeyboardInterrupt: this process was interrupted; what was begun has been stopped in order.
    """
    with _forwarding_interrupts() as interrupts:
        reading, writing = os.pipe()
        with open(reading, "rb") as answers:
            try:
                process = _start(request, writing)
            finally:
                os.close(writing)
            interrupts.forward_to(process)
            try:
                _wait(process)
            except BaseException:  # e.g. what a handler of another signal raises
                process.send_signal(signal.SIGINT)
                process.wait()
                raise
            answered = [msgspec.json.decode(line, type=Answer) for line in answers]
    if interrupts.heard:
        interrupt = KeyboardInterrupt()
        if answered and isinstance(answered[0], Began):
            interrupt.add_note(f"it was stopped in order; see {answered[0].folder}")
        raise interrupt
    match answered:
        case [Began(folder)]:
            return Ended(Path(folder), process.returncode)
        case [Refused(place, problem, remedy, notes)]:
            error = RecipeError(place, problem, remedy)
            for note in notes:
                error.add_note(note)
            raise error
        case _:
            raise ComponentFailed(f"{_how_it_ended(process.returncode)} before it began; what it printed above says why")


class _Interrupts:
    """Interrupts that are passed on to a process, also those that came before it had started."""

    def __init__(self) -> None:
        self.heard = False
        self._process: subprocess.Popen[str] | None = None

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT."""
        self.heard = True
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)

    def forward_to(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        if self.heard:
            process.send_signal(signal.SIGINT)


@contextmanager
def _forwarding_interrupts() -> Iterator[_Interrupts]:
    """Hear interrupts instead of having them raised: one could come when the process has started and nobody waits for it yet.

    In other threads than the main one, and where SIGINT is ignored, there are none to hear.
    """
    interrupts = _Interrupts()
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, interrupts.hear)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


def _start(request: Request, descriptor: int) -> subprocess.Popen[str]:
    inherits = _is_own(sys.stdout, 1)
    return subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "asyncrl.api.driver"),
            *(msgspec.json.encode(request).decode(), str(descriptor), str(os.getpid())),
        ],
        stdin=subprocess.DEVNULL,
        stdout=None if inherits else subprocess.PIPE,
        stderr=None if inherits else subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=(descriptor,),
        # Environments of the user's own are importable there if they are here.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        # An interrupt reaches it once, from here, and not also through the terminal or the notebook's kernel.
        start_new_session=True,
    )


def _is_own(stream: TextIO, descriptor: int) -> bool:
    """Whether a stream is this process's own, not what a notebook or a test has put in its place."""
    try:
        return stream is sys.__stdout__ and stream.fileno() == descriptor
    except (OSError, ValueError, AttributeError):
        return False


def _wait(process: subprocess.Popen[str]) -> None:
    """Show what the process prints until it ends."""
    showing = threading.Thread(target=_show, args=(process,), daemon=True)
    showing.start()
    process.wait()
    showing.join(SHOWING_S)


def _show(process: subprocess.Popen[str]) -> None:
    if process.stdout is None:
        return
    with process.stdout:  # if nothing can be shown any more, the process learns that nobody reads, and goes on
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()


def _how_it_ended(code: int) -> str:
    return f"the driver was killed by signal {-code}" if code < 0 else f"the driver ended with code {code}"
