"""A task's database, queried in processes that can be killed: SQLite looks at no clock while one of its functions runs.

What always holds: a query ends soon after its deadline, whatever it does; it takes nothing along but its own process; and what it
needs of memory has a bound.
"""

import json
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.envs.builtin.database import LARGEST_VALUE, Database, DatabaseError, QueryRefused, limit_memory
from asyncrl.envs.hosting.guarded_calls import Overdue
from asyncrl.envs.hosting.process_functions import ProcessFunctions
from asyncrl.envs.hosting.tool_messages import ToolError
from asyncrl.envs.hosting.tool_processes import ProcessEnded, ToolProcesses

_YES, _NO = "yes", "no"
OPEN_AT_ONCE = 16
"""Databases that a process keeps open."""
SLACK_S = 1.0
"""Seconds after its deadline at which a query that SQLite has not ended is killed with its process."""


class DatabaseSource(msgspec.Struct, frozen=True):
    """What a database is opened from.

    Attributes:
        script: SQL that builds it in memory; if empty, it is the file at ``path``.
        seconds: deadline of the script, and of each query.
    """

    script: str
    path: str
    seconds: float


class TaskDatabase:
    """The database of one task. Its methods raise ``EnvironmentBroken`` if no process can be started.

    Args:
        processes: where its queries run.
    """

    def __init__(self, processes: ToolProcesses, source: DatabaseSource) -> None:
        self._processes, self._source = processes, msgspec.structs.asdict(source)
        self._seconds = source.seconds

    async def check(self) -> None:
        """Open it.

        Raises:
            DatabaseError: that is not possible.
        """
        try:
            if problem := await self._ask("check"):
                raise DatabaseError(problem)
        except Overdue as error:
            raise DatabaseError(f"opening it took longer than {self._seconds:g} s; raise query_timeout_s") from error
        except (ToolError, ProcessEnded, ValueError) as error:
            raise DatabaseError(f"opening it failed: {error}") from error

    async def show(self, sql: str, rows: int) -> str:
        """Return the result of one SELECT as text, with at most so many rows.

        Raises:
            QueryRefused: it failed; the text says why.
        """
        return await self._query("show", sql, rows=rows)

    async def returns(self, sql: str, rows: list[list[Any]]) -> bool:
        """Whether one SELECT returns these rows, in any order. Raises what :meth:`show` raises."""
        return await self._query("returns", sql, rows=json.dumps(rows)) == _YES

    async def _query(self, function: str, sql: str, **arguments: Any) -> str:
        if len(sql) > LARGEST_VALUE:
            raise QueryRefused(f"a query may have {LARGEST_VALUE:,} characters")
        try:
            sql.encode()
            return await self._ask(function, sql=sql, **arguments)
        except Overdue as error:
            raise QueryRefused(f"the query took longer than {self._seconds:g} s") from error
        except (ToolError, UnicodeEncodeError) as error:
            raise QueryRefused(str(error)) from error
        except ProcessEnded as error:
            raise QueryRefused(f"the query was ended: {error}") from error

    async def _ask(self, function: str, **arguments: Any) -> str:
        # Twice: a process that does not have the database open opens it first.
        return await DatabaseProcess.call(self._processes, function, self._source | arguments, 2 * self._seconds + SLACK_S)


class DatabaseProcess(ProcessFunctions):
    """The functions that the process of a query runs."""

    @staticmethod
    def check(script: str, path: str, seconds: float) -> str:
        """Return what keeps a database from being opened; empty if nothing does."""
        try:
            _opened(DatabaseSource(script, path, seconds))
        except DatabaseError as error:
            return str(error)
        return ""

    @staticmethod
    def show(script: str, path: str, seconds: float, sql: str, rows: int) -> str:
        """Return the result of a query as text."""
        try:
            return str(_opened(DatabaseSource(script, path, seconds)).query(sql, rows))
        except QueryRefused as error:
            raise ToolError(str(error)) from error

    @staticmethod
    def returns(script: str, path: str, seconds: float, sql: str, rows: str) -> str:
        """Say whether a query returns ``rows``, a JSON list of lists."""
        expected = Counter(map(tuple, json.loads(rows)))
        try:
            found = _opened(DatabaseSource(script, path, seconds)).query(sql, expected.total())
        except QueryRefused as error:
            raise ToolError(str(error)) from error
        return _YES if not found.more and Counter(found.rows) == expected else _NO


@lru_cache(maxsize=OPEN_AT_ONCE)
def _opened(source: DatabaseSource) -> Database:
    limit_memory()
    if source.script:
        return Database.build(source.script, source.seconds)
    return Database.open_file(Path(source.path), source.seconds)
