"""Follows a run that a process drives: calls callbacks with what happens, and says how the run ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from asyncrl.api.driver_process import Ended
    from asyncrl.api.run import Run
    from asyncrl.cli.driving.messages import Began
    from asyncrl.run.measures.events import RunEvent

    R = TypeVar("R", bound=Run)


def follow(
    read: Callable[[Path], R],
    callbacks: Sequence[Callable[[RunEvent, R], object]],
    began: Began,
    process: Popen[str],
) -> None:
    """Call callbacks with each event of a run that has begun, from then on, until its process ends.

    Args:
        read: reads a run from its folder.
    """
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
