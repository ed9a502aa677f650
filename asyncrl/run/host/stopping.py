"""Stops a run from outside: asks its driver by a signal, and waits until it has ended in order."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from asyncrl.core.errors import DeadlineExceeded, RecipeError
from asyncrl.run.folder.run_folder import RunFolder

STOP_S = 60.0
"""How long a driver may take to end: its own deadline is ``deadlines.shutdown``, at most 15 s."""
LOOK_S = 0.1
"""Seconds between two looks whether it has ended. No event says that another process has given up its lock."""


def stop(folder: RunFolder, wait: Callable[[float], object] = time.sleep) -> None:
    """Stop the run in order, as SIGTERM does, and wait until it has ended.

    Raises:
        RecipeError: the run does not go on, or not on this machine, or is another user's.
        DeadlineExceeded: it does not end.
    """
    driver = folder.driver
    if driver is None:
        raise RecipeError("", f"the run in {str(folder.path)!r} is not running", "asyncrl runs says which run goes on")
    if not holds(driver, folder.lock):
        problem = f"the run in {str(folder.path)!r} is driven on another machine, or by another user"
        raise RecipeError("", problem, "run the command there, as that user")
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(driver, signal.SIGTERM)
    until = time.monotonic() + STOP_S
    while folder.is_driven:
        if time.monotonic() > until:
            raise DeadlineExceeded("asyncrl stop", f"process {driver} to end the run", STOP_S, f"kill it: kill -9 {driver}")
        wait(LOOK_S)


def holds(process: int, lock: Path) -> bool:
    """Whether the process of this machine has the file open, so that a signal reaches the one that is meant."""
    try:
        there, opened = lock.stat(), list(Path(f"/proc/{process}/fd").iterdir())
    except OSError:
        return False
    return any(_is_same(each, there) for each in opened)


def _is_same(file: Path, there: os.stat_result) -> bool:
    try:
        return os.path.samestat(file.stat(), there)
    except OSError:  # a driver opens and closes files all the time
        return False
