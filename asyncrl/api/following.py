"""Follows a run that a process drives: calls callbacks with what happens, and says how the run ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import TYPE_CHECKING, TypeVar

from asyncrl.core.errors import RecipeError
from asyncrl.core.text import short

if TYPE_CHECKING:
    from asyncrl.api.driver_process import Ended
    from asyncrl.api.run import Run
    from asyncrl.cli.driving.messages import Began
    from asyncrl.run.measures.events import RunEvent

    R = TypeVar("R", bound=Run)


def following(
    read: Callable[[Path], R], callbacks: Sequence[Callable[[RunEvent, R], object]]
) -> Callable[[Began, Popen[str]], None]:
    """Return what follows a run with callbacks, once it has begun.

    Args:
        read: reads a run from its folder.

    Raises:
        RecipeError: the callbacks are no list of functions.
    """
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise RecipeError("", f"callbacks is {short(callbacks)}", "give a list of functions that take an event and the run")
    return partial(_follow, read, callbacks)


def _follow(
    read: Callable[[Path], R],
    callbacks: Sequence[Callable[[RunEvent, R], object]],
    began: Began,
    process: Popen[str],
) -> None:
    """Call callbacks with each event of a run that has begun, from then on, until its process ends."""
    if not callbacks:
        return
    from asyncrl.run.measures.event_log import FOLLOW_S, EventReader

    folder = Path(began.folder)
    run, reader = read(folder), EventReader(folder / "events.jsonl", began.events)
    run._driven_by(process)
    while True:
        ended = process.poll() is not None  # asked first: what was written before the end is read below
        for event in reader.new():
            for callback in callbacks:
                callback(event, run)
        if ended:
            return
        try:
            process.wait(FOLLOW_S)
        except TimeoutExpired:
            continue


def completed(ended: Ended, read: Callable[[Path], R]) -> R:
    """Return the run that a process has just driven.

    Raises:
        RunFailed, RunInterrupted: it did not complete.
    """
    run = read(ended.folder)
    ended.require_completed(run)
    return run
