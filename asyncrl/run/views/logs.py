"""Merges the logs of all processes of a run by time, of a run that has ended and of one that goes on."""

import heapq
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from asyncrl.core.errors import RecipeError
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.views.log_records import LogFile, LogRecord

FOLLOW_S = 0.25
"""Seconds between two looks for new lines. No event says that a file has grown."""


def read_logs(folder: RunFolder) -> Iterator[LogRecord]:
    """Yield all records of a run's logs by time; those of the same time in the order of their processes' names.

    Raises:
        RecipeError: the run has no logs.
    """
    with ExitStack() as files:
        logs = [_open(path, files) for path in _paths(folder)]
        yield from _merged(logs, whole=True, ended=True)


def follow_logs(folder: RunFolder, wait: Callable[[float], None] = time.sleep) -> Iterator[LogRecord]:
    """Yield all records like :func:`read_logs`, and then new ones as they come, until no process drives the run.

    Args:
        wait: lets the seconds pass until the next look.
    """
    with ExitStack() as files:
        logs: dict[Path, LogFile] = {}
        quiet = 0
        while True:
            ended = not folder.is_driven
            for path in _paths(folder):
                if path not in logs:
                    logs[path] = _open(path, files)
            # A record may get more lines, so the last of each file waits until there was nothing new for a moment.
            came = False
            for record in _merged([logs[path] for path in sorted(logs)], whole=ended or quiet == 1, ended=ended):
                came = True
                yield record
            if ended:
                return
            quiet = 0 if came else quiet + 1
            wait(FOLLOW_S)


def _merged(logs: list[LogFile], *, whole: bool, ended: bool) -> Iterator[LogRecord]:
    return heapq.merge(*(log.read(whole=whole, ended=ended) for log in logs), key=lambda record: record.time)


def _paths(folder: RunFolder) -> list[Path]:
    found = sorted(folder.logs.glob("*.log"))
    if not found:
        raise RecipeError("", f"{folder.path} has no logs", "wait until the run has started, or name another run's folder")
    return found


def _open(path: Path, files: ExitStack) -> LogFile:
    log = LogFile(path)
    files.callback(log.close)
    return log
