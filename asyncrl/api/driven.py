"""Starts the process that drives a run for this one, shows what it prints, and waits for its end.

What always holds: when :func:`drive` returns or raises, the process has ended, and with it every process of the run. Nothing here
needs the main thread or an event loop, and a running one does not matter.
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TextIO

import msgspec

from asyncrl.api.messages import Answer, Began, Refused, Request
from asyncrl.core.errors import ComponentFailed, RecipeError


def drive(request: Request) -> Path:
    """Have ``request`` done to its end, and return its folder, which tells how it ended.

    Raises:
        RecipeError: it was refused; nothing was started.
        ComponentFailed: the process ended before it could begin.
        KeyboardInterrupt: this process was interrupted; what was begun has been stopped in order.
    """
    reading, writing = os.pipe()
    with open(reading, "rb") as answers:
        try:
            process = _start(request, writing)
        finally:
            os.close(writing)
        interrupt = _wait(process)
        told = [msgspec.json.decode(line, type=Answer) for line in answers]
    if interrupt is not None:
        if told and isinstance(told[0], Began):
            interrupt.add_note(f"it was stopped in order; see {told[0].folder}")
        raise interrupt
    match told:
        case [Began(folder)]:
            return Path(folder)
        case [Refused(place, problem, remedy, notes)]:
            error = RecipeError(place, problem, remedy)
            for note in notes:
                error.add_note(note)
            raise error
        case _:
            raise ComponentFailed(f"{_how_it_ended(process.returncode)} before it began; what it printed above says why")


def _start(request: Request, descriptor: int) -> "subprocess.Popen[str]":
    inherits = _is_own(sys.stdout, 1)
    return subprocess.Popen(
        [sys.executable, "-m", "asyncrl.api.driver", msgspec.json.encode(request).decode(), str(descriptor), str(os.getpid())],
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


def _wait(process: "subprocess.Popen[str]") -> KeyboardInterrupt | None:
    """Show what the process prints until it ends. An interrupt is passed on to it, and returned when it has ended."""
    interrupt: KeyboardInterrupt | None = None
    showing = threading.Thread(target=_show, args=(process,), daemon=True)
    showing.start()
    while True:
        try:
            process.wait()
            showing.join()
            return interrupt
        except KeyboardInterrupt as again:
            interrupt = interrupt or again
            process.send_signal(signal.SIGINT)


def _show(process: "subprocess.Popen[str]") -> None:
    if process.stdout is None:
        return
    with process.stdout:  # if nothing can be shown any more, the process learns that nobody reads, and goes on
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()


def _how_it_ended(code: int) -> str:
    return f"the process that was to drive it was killed by signal {-code}" if code < 0 else f"the driver ended with code {code}"
