"""Reads the log files of a run as records, and merges those of all its processes by time, also while the run goes on.

The processes of a run log in formats of their own: ours, vLLM's, that of C++ libraries; and some only print. What always holds:
every line of a file belongs to exactly one record, records come in the order of the file, and their times never go back: lines
without a time have that of the record before them. A traceback is one record with the line that announces it.
"""

import heapq
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_errors import naming
from asyncrl.run.folder.run_folder import RunFolder

_LEVELS = {
    "D": logging.DEBUG,
    "I": logging.INFO,
    "W": logging.WARNING,
    "E": logging.ERROR,
    "F": logging.CRITICAL,
    "C": logging.CRITICAL,
}
_PROCESS = r"(?:\([^)]*pid=\d+\) )?"
_NAMED = r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_HEADERS = tuple(
    re.compile(pattern)
    for pattern in (
        # 2026-11-22 06:37:14,802 WARNING asyncrl.generators.worker: ...
        rf"(?P<year>\d{{4}})-(?P<month>\d\d)-(?P<day>\d\d) {_CLOCK},(?P<fraction>\d+) {_NAMED} ",
        # (EngineCore pid=32290) WARNING 11-22 06:37:25 [utils.py:333] ...
        rf"{_PROCESS}{_NAMED} (?P<month>\d\d)-(?P<day>\d\d) {_CLOCK} ",
        # [2026-11-22 06:37:14,304 W 32072 32072] ...
        rf"\[(?P<year>\d{{4}})-(?P<month>\d\d)-(?P<day>\d\d) {_CLOCK},(?P<fraction>\d+) (?P<level>[DIWEFC]) ",
        # [W1122 06:37:25.233902357 utils.cpp:68] ...
        rf"\[?(?P<level>[IWEF])(?P<month>\d\d)(?P<day>\d\d) {_CLOCK}\.(?P<fraction>\d+) ",
    )
)
_PREFIX = re.compile(_PROCESS)
_OURS = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ [A-Z]+ (?!vllm[.:])")
_TRACEBACK = ("Traceback (most recent call last):", "Fatal Python error")
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_UNSEEN = dict.fromkeys([*range(32), *range(127, 160)], "\N{REPLACEMENT CHARACTER}") | {ord("\t"): "\t"}
_LONGEST_LINE = 1 << 20
"""Bytes of a line without an end after which it is taken as one."""


class LogRecord(msgspec.Struct):
    """A record of a log.

    Attributes:
        time: seconds since the epoch.
        process: name of the process, e.g. ``generator-0``.
        level: as in :mod:`logging`; 0 if the line does not say.
        lines: its text; escape sequences and control characters are left out or replaced.
        of_library: whether it is in the format of a library, such as vLLM's, or from a logger of vLLM's.
    """

    time: float
    process: str
    level: int
    lines: list[str]
    of_library: bool = False


class LogFile:
    """Reads one log file to its present end, and later on from there."""

    def __init__(self, path: Path) -> None:
        self._path, self._process = path, path.stem
        self._file = path.open("rb")
        self._partial = b""
        self._open: LogRecord | None = None
        self._before_any_time: list[LogRecord] = []
        self._time: float | None = None
        self._in_traceback = False

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, *, whole: bool, ended: bool) -> Iterator[LogRecord]:
        """Yield the records that have come since the last call.

        Args:
            whole: whether the last record is complete; if not, it is held back.
            ended: whether nothing more will be written.
        """
        self._restart_if_cut()
        for line in self._lines():
            yield from self._take(_shown(line))
        if ended and self._partial:
            yield from self._take(_shown(self._partial))
            self._partial = b""
        if whole:
            yield from self._end_record()
            if self._time is None:
                self._time = os.fstat(self._file.fileno()).st_mtime
            yield from self._wait_over()

    def _restart_if_cut(self) -> None:
        """Go to the end of a file that has become shorter: its middle was cut out, and nobody knows what is new."""
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0, os.SEEK_END)
            self._partial = b""

    def _lines(self) -> Iterator[bytes]:
        while chunk := self._next_line():
            line = self._partial + chunk
            if line.endswith(b"\n") or len(line) >= _LONGEST_LINE:
                self._partial = b""
                yield line
            else:
                self._partial = line

    def _next_line(self) -> bytes:
        with naming(self._path):
            return self._file.readline(_LONGEST_LINE)

    def _take(self, line: str) -> Iterator[LogRecord]:
        header = next((match for pattern in _HEADERS if (match := pattern.match(line))), None)
        body = line[_PREFIX.match(line).end() :]  # type: ignore[union-attr]
        starts_traceback = body.startswith(_TRACEBACK)
        if header is not None:
            yield from self._end_record()
            self._time = max(self._time or 0.0, self._time_of(header))
            yield from self._wait_over()
            self._begin_record(line, _LEVELS[header["level"][0]], of_library=_OURS.match(line) is None)
            self._in_traceback = False
        elif self._open is not None and self._continues(body, starts_traceback):
            self._open.lines.append(line)
            if starts_traceback and self._open.level < logging.WARNING:
                self._open.level = logging.ERROR
        else:
            yield from self._end_record()
            self._begin_record(line, logging.ERROR if starts_traceback else logging.NOTSET)
        if starts_traceback:
            self._in_traceback = True
        elif self._in_traceback and body and not body[0].isspace() and not body.startswith(_CHAINED):
            self._in_traceback = False  # this is the line that names the error

    def _continues(self, line: str, starts_traceback: bool) -> bool:
        """Return whether a line without a header belongs to the record before it."""
        assert self._open is not None
        if self._in_traceback or not line or line[0].isspace() or line.startswith(_CHAINED):
            return True
        return starts_traceback and self._open.level > logging.NOTSET

    def _begin_record(self, line: str, level: int, of_library: bool = False) -> None:
        self._open = LogRecord(self._time or 0.0, self._process, level, [line], of_library)

    def _end_record(self) -> Iterator[LogRecord]:
        record, self._open = self._open, None
        if record is not None:
            if self._time is None:
                self._before_any_time.append(record)
            else:
                yield record

    def _wait_over(self) -> Iterator[LogRecord]:
        """Yield the records before the first line with a time, which have that time."""
        waiting, self._before_any_time = self._before_any_time, []
        for record in waiting:
            record.time = self._time or 0.0
            yield record

    def _time_of(self, header: re.Match[str]) -> float:
        found = header.groupdict()
        month, day, hour, minute, second = (int(found[name]) for name in ("month", "day", "hour", "minute", "second"))
        fraction = float(f"0.{found.get('fraction') or 0}")
        newest = os.fstat(self._file.fileno()).st_mtime
        year = int(found.get("year") or datetime.fromtimestamp(newest).year)
        try:
            time = datetime(year, month, day, hour, minute, second).timestamp() + fraction
            if not found.get("year") and time > newest + 86400:  # written in December, read in January
                time = datetime(year - 1, month, day, hour, minute, second).timestamp() + fraction
        except ValueError:  # it only looks like a time
            return self._time or 0.0
        return time


def _shown(line: bytes) -> str:
    """Return a line as it can be shown: of what overwrites itself, such as a progress bar, the last state."""
    text = _ESCAPES.sub("", line.decode(errors="replace").rstrip("\r\n"))
    return text.rpartition("\r")[2].translate(_UNSEEN)


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
