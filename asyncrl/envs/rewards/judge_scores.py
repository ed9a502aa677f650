"""Keeps the scores that a judge gave: in memory, or in a file that several processes share and that outlives them."""

import asyncio
import hashlib
import sqlite3
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import msgspec

from asyncrl.core.errors import RecipeError

MOST_IN_MEMORY = 100_000
BUSY_S = 30.0
"""Seconds that a process waits for another that is writing to the same file."""


def question_key(url: str, model: str, messages: Sequence[dict[str, str]], parameters: Mapping[str, Any]) -> str:
    """The name of everything that a judge is asked, and with which parameters of its own."""
    further = [msgspec.json.encode(parameters, order="sorted").decode()] if parameters else []
    return hashlib.sha256(msgspec.json.encode([url, model, messages, *further])).hexdigest()


class Scores(Protocol):
    """Scores by the key of their question."""

    async def get(self, key: str) -> float | None:
        """Return the score that was kept; None if there is none."""
        ...

    async def keep(self, key: str, score: float) -> None:
        """Keep a score."""
        ...


class MemoryScores:
    """Keeps the newest scores in memory."""

    def __init__(self) -> None:
        self._scores: OrderedDict[str, float] = OrderedDict()

    async def get(self, key: str) -> float | None:
        """Return the score that was kept; None if there is none."""
        return self._scores.get(key)

    async def keep(self, key: str, score: float) -> None:
        """Keep a score, and forget the oldest if there are too many."""
        self._scores[key] = score
        if len(self._scores) > MOST_IN_MEMORY:
            self._scores.popitem(last=False)


class DiskScores:
    """Keeps all scores in an SQLite file. The disk is only touched in a thread.

    Raises:
        RecipeError: the file cannot be made.
    """

    def __init__(self, file: Path) -> None:
        self._file = file.absolute()
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._open() as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS scores (question TEXT PRIMARY KEY, score REAL NOT NULL)")
        except (OSError, sqlite3.Error) as error:
            raise RecipeError("", f"the judge's cache {str(file)!r} cannot be made: {error}", "name a file that can") from error

    async def get(self, key: str) -> float | None:
        """Return the score that was kept; None if there is none."""

        def read() -> float | None:
            with closing(self._open()) as connection:
                row = connection.execute("SELECT score FROM scores WHERE question = ?", (key,)).fetchone()
                return None if row is None else float(row[0])

        return await asyncio.to_thread(read)

    async def keep(self, key: str, score: float) -> None:
        """Keep a score."""

        def write() -> None:
            with closing(self._open()) as connection, connection:
                connection.execute("INSERT OR REPLACE INTO scores VALUES (?, ?)", (key, score))

        await asyncio.to_thread(write)

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._file, timeout=BUSY_S)
        connection.execute("PRAGMA synchronous = OFF")  # a score that a power cut takes is asked for again
        return connection
