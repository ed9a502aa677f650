"""A SQLite database that a model may query and not change.

What always holds: a query reads and does nothing else. No table is written, no file attached or made, no pragma set, no extension
loaded; a query returns at most so many rows and bytes, and ends at its deadline, unless it is within a function of SQLite, which
looks at no clock: :mod:`asyncrl.envs.builtin.sql` has it in a process that can be killed.
"""

import contextlib
import sqlite3
import time
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.text import short

CHECKED_EVERY = 1000
"""Instructions of SQLite's virtual machine between looks at the clock."""
LARGEST_VALUE = 1_000_000
"""Bytes of the largest text or blob, and of a query: no function can ask for more memory."""
LARGEST_RESULT = 64 << 20
"""Bytes of the texts and blobs of all rows that a query returns."""
MEMORY = 1 << 30
"""Bytes that SQLite may use in a process."""
LONGEST_CELL = 1000
"""Characters of a value that are shown."""

_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_REFUSED_FUNCTIONS = {"load_extension", "readfile", "writefile", "fts3_tokenizer", "edit"}


class DatabaseError(AsyncRLError):
    """A database cannot be opened; the text names the file or the line of the script."""


class QueryRefused(Exception):
    """A query failed, took too long or was not allowed; the text is for the model."""


class Table(msgspec.Struct, frozen=True):
    """The result of a query: at most the rows that were asked for; ``more`` says whether there would have been others."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool

    def __str__(self) -> str:
        lines = [" | ".join(self.columns), *(" | ".join(map(_shown, row)) for row in self.rows)]
        return "\n".join([*lines, "(more rows)"] if self.more else lines)


def limit_memory() -> None:
    """Limit what SQLite may use in this process, once and for all."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"PRAGMA hard_heap_limit={MEMORY}")


class Database:
    """An open database, for use in one thread."""

    def __init__(self, connection: sqlite3.Connection, seconds: float) -> None:
        self._connection, self._seconds, self._ends = connection, seconds, 0.0
        connection.execute("PRAGMA temp_store=MEMORY")  # what is sorted must not fill the disk
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)
        connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, LARGEST_VALUE)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_progress_handler(lambda: time.monotonic() > self._ends, CHECKED_EVERY)
        connection.set_authorizer(_authorize)

    @classmethod
    def open_file(cls, path: Path, seconds: float) -> "Database":
        """Open a database file for reading. It must not change meanwhile, because it is not locked.

        Raises:
            DatabaseError: there is no such file, or it is no database.
        """
        if not path.is_file():
            raise DatabaseError(f"there is no database file {path}; name one that SQLite made")
        try:
            connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.Error as error:
            raise DatabaseError(f"cannot read {path}: {error}; name a file that SQLite made") from error
        return cls(connection, seconds)

    @classmethod
    def build(cls, script: str, seconds: float) -> "Database":
        """Build a database in memory.

        Raises:
            DatabaseError: the script fails, attaches a file or takes too long.
        """
        connection = sqlite3.connect(":memory:")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        ends = time.monotonic() + seconds
        connection.set_progress_handler(lambda: time.monotonic() > ends, CHECKED_EVERY)
        try:
            connection.executescript(script)
            connection.commit()
        except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
            connection.close()
            late = f"it took longer than {seconds:g} s" if time.monotonic() > ends else str(error)
            raise DatabaseError(f"the script of the database fails: {late}; the script begins with {short(script)}") from error
        return cls(connection, seconds)

    def query(self, sql: str, rows: int) -> Table:
        """Run one SELECT, and return at most so many rows.

        Raises:
            QueryRefused: it failed; the text says why.
        """
        self._ends = time.monotonic() + self._seconds
        try:
            cursor = self._connection.execute(sql)
            found = _fetched(cursor, rows + 1)
        except sqlite3.OperationalError as error:
            if "interrupted" in str(error):
                raise QueryRefused(f"the query took longer than {self._seconds:g} s") from error
            raise QueryRefused(str(error)) from error
        except sqlite3.DatabaseError as error:
            only = "; only SELECT is allowed" if "not authorized" in str(error) or "prohibited" in str(error) else ""
            raise QueryRefused(f"{error}{only}") from error
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, UnicodeError) as error:
            raise QueryRefused(str(error)) from error
        except MemoryError as error:
            raise QueryRefused(f"the query needs more than {MEMORY:,} bytes of memory") from error
        if cursor.description is None:
            raise QueryRefused("this is no query; only SELECT is allowed")
        return Table(tuple(column for column, *_ in cursor.description), tuple(found[:rows]), len(found) > rows)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _fetched(cursor: sqlite3.Cursor, most: int) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    size = 0
    for row in islice(cursor, most):
        rows.append(row)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if size > LARGEST_RESULT:
            raise QueryRefused(f"its rows have more than {LARGEST_RESULT:,} bytes; select fewer of them")
    return rows


def _authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_DENY if str(second).lower() in _REFUSED_FUNCTIONS else sqlite3.SQLITE_OK
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _shown(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case bytes():
            return f"x'{value[:20].hex()}'{'...' if len(value) > 20 else ''}"
        case _:
            text = str(value)
            return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}..."
