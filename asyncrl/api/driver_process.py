"""Starts the process that drives a run for this one, shows what it prints, and waits for its end.

What always holds: when :func:`drive` returns or raises, the process has ended, and with it every process of the run. Nothing here
needs the main thread or an event loop, and a running one does not matter. But Python handles Ctrl-C in the main thread only, so a
call in another thread cannot be interrupted.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from asyncrl.api.errors import NotThere, RunFailed, RunInterrupted
from asyncrl.cli.driving.messages import Began, Request
from asyncrl.cli.driving.start import how_it_ended, start_driver

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
            raise RunFailed(self.folder, f"{how_it_ended(self.code)} and left no summary") from error
        if self.code != ExitCode[summary.status.name]:
            raise RunFailed(self.folder, f"{how_it_ended(self.code)}, but the summary says {summary.status}")
        match summary.status:
            case Status.INTERRUPTED:
                raise RunInterrupted(self.folder, summary.reason)
            case Status.FAILED:
                raise RunFailed(self.folder, summary.reason)


def drive(request: Request, watch: Callable[[Began, Popen[str]], None] | None = None) -> Ended:
    """Have ``request`` done to its end, and return its folder, which says how it ended, and the exit code.

    Args:
        watch: called once it has begun, with its answer and the process; may follow what happens until the process ends. If it
            raises, what was begun is stopped in order, and then its error is raised.

    Raises:
        RecipeError: it was refused; nothing was started.
        ComponentFailed: the process ended before it could begin.
        KeyboardInterrupt: this process was interrupted; what was begun has been stopped in order.
    """
    folder: Path | None = None
    with _forwarding_interrupts() as interrupts:
        driver = start_driver(request)
        process = driver.process
        with driver.answers, shown(process):
            interrupts.forward_to(process)
            try:
                began = driver.began()
                folder = Path(began.folder)
                if watch is not None and not interrupts.heard:
                    watch(began, process)
                process.wait()
            except BaseException:  # what the driver answered, what `watch` raised, or a handler of another signal
                if process.poll() is None:
                    stop(process)
                if not interrupts.heard:
                    raise
    if interrupts.heard:
        interrupt = KeyboardInterrupt()
        if folder is not None:
            interrupt.add_note(f"it was stopped in order; see {folder}")
        raise interrupt
    assert folder is not None
    return Ended(folder, process.returncode)


def stop(process: Popen[str]) -> None:
    """End what a process drives in order, and wait for that; it has a deadline of its own."""
    process.send_signal(signal.SIGINT)
    process.wait()


class _Interrupts:
    """Interrupts that are passed on to a process, also those that came before it had started."""

    def __init__(self) -> None:
        self.heard = False
        self._process: Popen[str] | None = None

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT."""
        self.heard = True
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)

    def forward_to(self, process: Popen[str]) -> None:
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


@contextmanager
def shown(process: Popen[str]) -> Iterator[None]:
    """Show what the process prints until it ends."""
    showing = threading.Thread(target=_show, args=(process,), daemon=True)
    showing.start()
    try:
        yield
    finally:
        showing.join(SHOWING_S)


def _show(process: Popen[str]) -> None:
    if process.stdout is None:
        return
    with process.stdout:  # if nothing can be shown any more, the process learns that nobody reads, and goes on
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
