"""The record of what happens in a run, ``RUN/events.jsonl``: read while the run goes on, and afterwards.

What always holds: a line is appended whole or, if the process is killed, torn at the file's end, and a torn line counts as none.
A resumed run goes on in the same file.
"""

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from asyncrl.core.files.line_files import append_line, last_lines
from asyncrl.core.text import writable_json
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.events import Event, PhaseAdvanced, RunEvent
from asyncrl.run.measures.summary import Summary

logger = logging.getLogger(__name__)

FOLLOW_S = 0.2
"""Seconds between two looks for new lines. No event says that a file has grown."""
ADVANCE_S = 1.0
"""The least time between two events that say how far a phase is."""

_decoder = msgspec.json.Decoder(RunEvent)
E = TypeVar("E", bound=Event)
_LAST_BYTES = 1 << 18
"""How much of the file's end is read for what happened last."""


class EventLog:
    """Adds events to the file at ``path``, from any thread. ``clock`` returns seconds since 1970, and is there for tests."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        self._lock = threading.Lock()
        self._advanced = 0.0

    def tell(self, event: RunEvent) -> None:
        """Add an event. What the disk refuses is missing for those who watch, and the log says so: no reason to end a run."""
        event = msgspec.structs.replace(event, at=self._clock())
        with self._lock:
            if isinstance(event, PhaseAdvanced):
                if abs(event.at - self._advanced) < ADVANCE_S and event.fraction < 1:  # a clock may be set back
                    return
                self._advanced = event.at
            try:
                append_line(self._path, writable_json(event))
            except OSError as error:
                logger.warning("%s lacks a line, which whoever watches the run does not see: %s", self._path, error)


class EventReader:
    """Reads the events of one run, each once: call :meth:`new` again and again.

    Args:
        path: the file, which need not be there yet.
        offset: where to begin; by default at the beginning.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path, self._offset = path, offset

    def new(self) -> list[RunEvent]:
        """Return the events that were added since the last call. A line that cannot be read counts as none."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole, newline, _ = data.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return [event for line in whole.split(b"\n") if (event := _read(line)) is not None]


def _read(line: bytes) -> RunEvent | None:
    try:
        event: RunEvent = _decoder.decode(line)
    except (msgspec.DecodeError, ValueError):
        return None
    return event


def follow_events(folder: RunFolder, wait: Callable[[float], object] = time.sleep) -> Iterator[RunEvent]:
    """Yield the events of a run, and then new ones as they come, until no process drives the run.

    Args:
        wait: lets the seconds pass until the next look.
    """
    reader = EventReader(folder.events)
    while True:
        driven = folder.is_driven  # asked first: what was written before the run's end is read below
        yield from reader.new()
        if not driven:
            return
        wait(FOLLOW_S)


def read_end(folder: RunFolder) -> Summary:
    """Read how a run ended. A resume that goes on, or was killed, has not ended, and leaves the summary of the attempt before it.

    Raises:
        FileNotFoundError: the run has not ended.
        OSError, ValueError, RecursionError, UnknownFormat: the summary cannot be read.
    """
    summary = Summary.read(folder.summary)
    if summary.resumes < folder.resumes:
        raise FileNotFoundError(errno.ENOENT, "there is none of the last attempt", str(folder.summary))
    return summary


def last_event(path: Path, kind: type[E], most_bytes: int = _LAST_BYTES) -> E | None:
    """Return the last event of a kind, looked for in the end of the file; None if there is none."""
    lines = last_lines(path, most_bytes)
    tag = f'"{kind.__name__}"'.encode()
    return next((event for line in reversed(lines) if tag in line[:64] and isinstance(event := _read(line), kind)), None)
