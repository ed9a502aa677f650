"""Sends the output of an actor and of all its child processes to a log file, and keeps that from growing without a bound.

A tool of an environment may print as much as it likes, into the log of its generator. What always holds: the beginning of the
log, with the start of the process, and its newest lines are kept; a line says how much was cut out between them.
"""

import logging
import os
import sys
import threading
from pathlib import Path

from asyncrl.core.process.log_format import log_to
from asyncrl.core.process.standard_streams import logged_stream, standard_stream


def route_output(log_file: Path) -> None:
    """Send this process's standard output and error, its children's, and its logging into one file.

    On a node that does not see the run folder, the file lies in one of the same name there; see
    :mod:`asyncrl.run.nodes.remote_files`.

    File descriptors are replaced, not only ``sys.stdout``, because engines write from processes and libraries of their own.
    """
    begin = os.O_TRUNC if _is_far(log_file.parent) else 0  # what is there was brought to the run folder when the run ran before
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | begin, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    # ``exit()`` closes standard input, and the user's code may close the others. None of the three descriptors may become free:
    # the next file or connection would take its number, and be the standard output of this process's children.
    sys.stdin = open(os.devnull)  # noqa: SIM115 - it lives as long as the process
    sys.stdout, sys.stderr = logged_stream(1), logged_stream(2)
    log_to(logging.StreamHandler(standard_stream(2)))
    BoundedLog(log_file).watch()


def _is_far(logs: Path) -> bool:
    """Whether ``logs`` is not the run's own folder of logs but one of the same name on another node, made here or before."""
    far = logs / ".far"
    if not logs.is_dir():
        logs.mkdir(parents=True, exist_ok=True)
        far.touch()
    return far.exists()


LIMIT = 64 << 20
"""The size of a log, in bytes, above which its middle is cut out."""
HEAD = TAIL = 8 << 20
"""Bytes that are kept of its beginning and of its end."""
LOOK_S = 1.0
"""Seconds between two looks at the size. No event tells that a file has grown, since processes of all kinds write to it."""


class BoundedLog:
    """Bounds the size of one log file. All who write to it must have opened it for appending.

    Args:
        path: the log file, which exists.
        limit, head, tail: see the constants.
    """

    def __init__(self, path: Path, limit: int = LIMIT, head: int = HEAD, tail: int = TAIL) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self._limit, self._head, self._tail = limit, head, tail
        self._kept: int | None = None
        self._cut = 0
        self._note = b""

    def watch(self) -> None:
        """Look at the size again and again, in a thread, for as long as the process lives."""
        threading.Thread(target=self._run, name="bounding the log", daemon=True).start()

    def look(self) -> None:
        """Cut out the middle of the log if it has become too large."""
        size = os.fstat(self._file).st_size
        if size <= self._limit:
            return
        if self._kept is None:
            self._kept = os.pread(self._file, self._head, 0).rfind(b"\n") + 1
        newest = os.pread(self._file, self._tail, size - self._tail)
        newest = newest[newest.find(b"\n") + 1 :]
        self._cut += size - self._kept - len(newest) - len(self._note)
        self._note = f"[{self._cut:,} bytes of this log were cut out here: it had more than {self._limit:,}]\n".encode()
        # Nobody waits for this: what others write meanwhile ends up before the note, or is cut out uncounted.
        os.ftruncate(self._file, self._kept)
        os.write(self._file, self._note)
        os.write(self._file, newest)

    def _run(self) -> None:
        waiting = threading.Event()
        while not waiting.wait(LOOK_S):
            try:
                self.look()
            except OSError:
                continue  # a full disk, most likely: what was cut makes room
