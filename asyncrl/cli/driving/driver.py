"""Drives a run, an evaluation or a sweep for another process: ``python -m asyncrl.cli.driving.driver REQUEST DESCRIPTOR PARENT``.

It is a process of its own because a run takes the signals of its process, adopts orphans and ends every process below it: none of
these may happen to a notebook. It shows what the command line shows, answers the request on a file descriptor, and is stopped by
SIGTERM, in order, when the process that started it is gone.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import msgspec

from asyncrl.cli import evaluate, launch
from asyncrl.cli.console import PatientConsole, say
from asyncrl.cli.driving.messages import Answer, Began, EvaluateRequest, LaunchRequest, Refused, Request, SweepRequest
from asyncrl.cli.outcome import ExitCode, show_error, show_system_failure
from asyncrl.cli.streams import show_what_can_be_shown
from asyncrl.cli.sweeps import sweep
from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.run.evaluation.plan import in_directory_of
from asyncrl.run.folder.run_folder import in_launch_directory, make_importable
from asyncrl.run.host.parent import stop_with
from asyncrl.run.host.signals import interrupting
from asyncrl.run.storage.fetched_run import resumed_run


def drive(request: Request, answer: Callable[[Answer], None]) -> ExitCode:
    """Do what is asked, and ``answer`` whether it was begun or refused."""
    try:
        match request:
            case LaunchRequest():
                return _launch(request, answer)
            case EvaluateRequest(asked):
                console = PatientConsole()
                with in_directory_of(asked) as request_there:
                    plan, kept = evaluate.prepare(request_there)
                    answer(Began(str(kept.path)))
                    return evaluate.evaluate_to_end(plan, kept, console)
            case SweepRequest():
                return _sweep(request, answer)
    except RecipeError as error:
        answer(Refused(error.place, error.problem, error.remedy, tuple(getattr(error, "__notes__", ()))))
        return ExitCode.REFUSED


def _launch(request: LaunchRequest, answer: Callable[[Answer], None]) -> ExitCode:
    """Launch or resume a run.

    Raises:
        RecipeError: it is refused.
    """
    start = None if request.start is None else Path(request.start)
    if request.code is not None:
        make_importable(Path(request.code))
    with ExitStack() as stack:
        found = None if request.resume is None else stack.enter_context(resumed_run(request.resume, say))
        if found is not None:
            stack.enter_context(in_launch_directory(found, start))
        launch.check_tags(request.tags)
        accepted = launch.accept(request.recipe, request.overrides, None if found is None else found.path)
        folder = accepted.make_folder()
        launch.label(folder, request.named, request.overrides, request.tags, request.note)
        if request.code is not None:
            shutil.copytree(request.code, folder.code, dirs_exist_ok=True)
            make_importable(folder.code)
        answer(Began(str(folder.path), folder.events.stat().st_size if folder.events.is_file() else 0))
        if request.detached:
            _write_into(folder.terminal)
        return launch.start(accepted, folder, PatientConsole(), quiet=request.quiet)


def _sweep(request: SweepRequest, answer: Callable[[Answer], None]) -> ExitCode:
    """Run a sweep, or what is missing of one.

    Raises:
        RecipeError: it is refused.
    """
    from asyncrl.sweeps.prepared import Asked

    console = PatientConsole()
    if request.resume is None:
        assert request.recipe is not None
        asked = Asked(recipe=request.recipe, overrides=request.overrides, seeds=request.seeds, parallel=request.parallel)
        folder = sweep.make(asked, console)
    else:
        folder = sweep.resumed(Path(request.resume), request.parallel)
    return sweep.run_missing(folder, request.parallel, console, lambda: answer(Began(str(folder.path))))


def _write_into(file: Path) -> None:
    """Have this process, and those that it starts, write into a file what they would write to the terminal."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


def main(request: Request, descriptor: int, parent: int) -> NoReturn:
    """Drive, and exit at once: everything has ended by then.

    Args:
        parent: the process that asks, with which this one ends; 0 if it goes on without it.
    """
    show_what_can_be_shown()
    os.set_inheritable(descriptor, False)  # whoever reads the answers reads until nobody has it
    if parent:
        stop_with(parent)

    def answer(message: Answer) -> None:
        os.write(descriptor, msgspec.json.encode(message) + b"\n")

    code: int = ExitCode.INTERRUPTED
    with interrupting():
        try:
            code = drive(request, answer)
        except KeyboardInterrupt:  # before there is a run that could end in order
            pass
        except AsyncRLError as error:
            code = show_error(error)
        except (OSError, ImportError, MemoryError) as error:
            code = show_system_failure(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the reader has gone
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Request), int(sys.argv[2]), int(sys.argv[3]))
