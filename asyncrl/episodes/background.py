"""Writes files of kept episodes in a thread of its own, so that nobody waits for text, compression or the disk.

What always holds: files are written in the order in which they were handed over; whoever hands one over waits only while
``QUEUE_LENGTH`` others wait, and then at most ``WAIT_S``; a file that cannot be written is given up; the first is reported, and
all are counted.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from asyncrl.episodes.writer import Decode, KeptTrajectory, table, write

logger = logging.getLogger(__name__)

QUEUE_LENGTH = 4
"""Files that may wait. Each holds the episodes of a training step in memory."""
WAIT_S = 30.0
"""How long to wait for a disk that is slower than training before a file is given up."""


class _File(NamedTuple):
    path: Path
    episodes: Callable[[], Sequence[KeptTrajectory]]


class BackgroundWriter:
    """The thread and its queue. Call its methods from one thread; none of them raises.

    Args:
        environment: names the environment that plays the tasks of a source.
        load: called once in the thread, to load what makes text of tokens.
    """

    def __init__(self, environment: Callable[[str | None], str], load: Callable[[], Decode]) -> None:
        self._environment, self._load = environment, load
        self._work: queue.Queue[_File | threading.Event] = queue.Queue(QUEUE_LENGTH)
        self._lost = 0
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        # A daemon, so that a disk that never answers cannot keep the process alive.
        self._thread = threading.Thread(target=self._run, name="writing episodes", daemon=True)

    def put(self, path: Path, episodes: Callable[[], Sequence[KeptTrajectory]]) -> None:
        """Have the thread write what ``episodes`` returns to ``path``."""
        if self._thread.ident is None:
            self._thread.start()
        try:
            self._work.put(_File(path, episodes), timeout=WAIT_S)
        except queue.Full:
            self._give_up(path, f"the disk has been slower than training for {WAIT_S:g} s")

    def news(self) -> str:
        """A sentence for the user that was not returned before; empty if there is none."""
        try:
            return self._news.get_nowait()
        except queue.Empty:
            return ""

    def flush(self, seconds: float) -> bool:
        """Wait until everything handed over so far is written or given up, for at most ``seconds``; whether it is."""
        if self._thread.ident is None:
            return True
        until, done = time.monotonic() + seconds, threading.Event()
        try:
            self._work.put(done, timeout=seconds)
        except queue.Full:
            return False
        return done.wait(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        decode: Decode | None = None
        while True:
            work = self._work.get()
            if isinstance(work, threading.Event):
                work.set()
                continue
            path, episodes = work
            try:
                decode = decode or self._load()
                write(table(episodes(), self._environment, decode), path)
            except Exception as error:  # whatever a file system or a tokenizer raises, training goes on
                if not isinstance(error, OSError):
                    logger.exception("writing %s", path)
                self._give_up(path, f"{type(error).__name__}: {error}")
            else:
                self._succeeded()

    def _give_up(self, path: Path, why: str) -> None:
        self._lost += 1
        if self._lost == 1:
            self._tell(f"{path} is not written ({why}); training goes on, and more files that cannot be written are only counted")

    def _succeeded(self) -> None:
        if self._lost:
            self._tell(f"trajectories are written again; {self._lost} files of them are missing")
            self._lost = 0

    def _tell(self, sentence: str) -> None:
        logger.warning("%s", sentence)
        self._news.put(sentence)
