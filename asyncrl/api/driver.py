"""Drives a run or an evaluation for another Python process: ``python -m asyncrl.api.driver REQUEST DESCRIPTOR PARENT``.

It is a process of its own because a run takes the signals of its process, adopts orphans and ends every process below it: none of
these may happen to a notebook. It shows what the command line shows, answers the request on a file descriptor, and is stopped by
SIGTERM, in order, when the process that started it is gone.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import msgspec

from asyncrl.api.messages import Answer, Began, EvaluateRequest, LaunchRequest, Refused, Request
from asyncrl.cli import evaluate, launch
from asyncrl.cli.console import PatientConsole, show_what_can_be_shown
from asyncrl.cli.outcome import ExitCode, show_system_failure
from asyncrl.core.errors import RecipeError
from asyncrl.run.evaluation.plan import in_directory_of
from asyncrl.run.folder.launch_directory import in_launch_directory
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.signals import interrupting

_PR_SET_PDEATHSIG = 1


def drive(request: Request, answer: Callable[[Answer], None]) -> ExitCode:
    """Do what is asked, and ``answer`` whether it was begun or refused."""
    console = PatientConsole()
    try:
        match request:
            case LaunchRequest(recipe, overrides, resume):
                found = None if resume is None else RunFolder.find(Path(resume))
                with in_launch_directory(found) if found is not None else nullcontext():
                    accepted = launch.accept(recipe, overrides, None if found is None else found.path)
                    folder = accepted.make_folder()
                    answer(Began(str(folder.path)))
                    return launch.start(accepted, folder, console)
            case EvaluateRequest(asked):
                with in_directory_of(asked) as request_there:
                    plan, kept = evaluate.prepare(request_there)
                    answer(Began(str(kept.path)))
                    return evaluate.evaluate_to_end(plan, kept, console)
    except RecipeError as error:
        answer(Refused(error.place, error.problem, error.remedy, tuple(getattr(error, "__notes__", ()))))
        return ExitCode.REFUSED


def main(request: Request, descriptor: int, parent: int) -> NoReturn:
    """Drive, and exit at once: everything has ended by then."""
    show_what_can_be_shown()
    os.set_inheritable(descriptor, False)  # whoever reads the answers reads until nobody has it
    _stop_with(parent)

    def answer(message: Answer) -> None:
        os.write(descriptor, msgspec.json.encode(message) + b"\n")

    code: int = ExitCode.INTERRUPTED
    with interrupting():
        try:
            code = drive(request, answer)
        except KeyboardInterrupt:  # before there is a run that could end in order
            pass
        except (OSError, ImportError, MemoryError) as error:
            code = show_system_failure(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the reader has gone
            stream.flush()
    os._exit(code)


def _stop_with(parent: int) -> None:
    """Have the system send SIGTERM to this process when the thread that started it, which waits for it, is gone."""
    if hasattr(ctypes.CDLL(None), "prctl"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it was gone before
            os._exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Request), int(sys.argv[2]), int(sys.argv[3]))
