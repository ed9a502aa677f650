"""Built-in environment: questions on a SQLite database, which the model queries and cannot change.

The database is a file that all tasks share (option ``database``), a file or a script that a task names (columns ``database`` and
``script``), or, for the tasks that this environment makes, a small made table. What a task expects stands in one of two columns:
``answer``, a text or number that the final answer has to be; or ``rows``, the rows that the final answer, a query, has to return.

A task's database, queried in processes that can be killed: SQLite looks at no clock while one of its functions runs.

What always holds: a query ends soon after its deadline, whatever it does; it takes nothing along but its own process; and what it
needs of memory has a bound.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.task import Task
from asyncrl.core.text import short
from asyncrl.envs.base import Observation
from asyncrl.envs.builtin.answers import same_number
from asyncrl.envs.builtin.database import LARGEST_VALUE, Database, DatabaseError, QueryRefused, limit_memory
from asyncrl.envs.builtin.made_tables import make_tasks
from asyncrl.envs.expected_answer import says_nothing
from asyncrl.envs.hosting.guarded_calls import Overdue
from asyncrl.envs.hosting.process_functions import ProcessFunctions
from asyncrl.envs.hosting.tool_messages import ToolError
from asyncrl.envs.hosting.tool_processes import ProcessEnded, ToolProcesses
from asyncrl.envs.sandbox.fenced_code import SQL, code_in
from asyncrl.envs.stated_answer import stated_answer
from asyncrl.envs.tool_marks import tool
from asyncrl.envs.tools import ToolEnvironment

_YES, _NO = "yes", "no"
DIGITS = 9
"""Digits of a number with a fraction that have to be right in a row."""
_WRITTEN = re.compile(r"-?(?:0|[1-9]\d{0,14})(?:\.\d+)?")
"""A number that is written as text in a row; longer ones, and those with leading zeros, are names."""
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
        expected = Counter(map(_comparable, json.loads(rows)))
        try:
            found = _opened(DatabaseSource(script, path, seconds)).query(sql, expected.total())
        except QueryRefused as error:
            raise ToolError(str(error)) from error
        return _YES if not found.more and Counter(map(_comparable, found.rows)) == expected else _NO


def _comparable(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return a row as it is compared: a sum depends on its order in the last digits, and Parquet has one type in a column."""
    return tuple(_rounded(float(each)) if isinstance(each, str) and _WRITTEN.fullmatch(each) else _rounded(each) for each in row)


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and not value.is_integer() else value


@lru_cache(maxsize=OPEN_AT_ONCE)
def _opened(source: DatabaseSource) -> Database:
    limit_memory()
    if source.script:
        return Database.build(source.script, source.seconds)
    return Database.open_file(Path(source.path), source.seconds)


class Sql(ToolEnvironment):
    """The model queries a database, and answers a question or writes a query.

    Args:
        database: path of a SQLite file, for tasks that name none. It must not change during the run.
        max_rows: rows of a result that are shown.
        query_timeout_s: deadline of one query.
    """

    def __init__(
        self,
        database: str = "",
        max_rows: Annotated[int, Meta(ge=1, le=1000)] = 50,
        query_timeout_s: Annotated[float, Meta(gt=0, le=600)] = 5.0,
    ) -> None:
        self._path, self._max_rows, self._seconds = database, max_rows, query_timeout_s
        self._database: TaskDatabase | None = None

    async def reset(self, task: Task) -> Observation:
        """Open the task's database."""
        try:
            self._database = TaskDatabase(self._asyncrl_processes, self._source(task))
            await self._database.check()
        except DatabaseError as error:
            raise EnvironmentBroken(f"task {task.id}: {error}") from error
        _check_expected(task)
        return await super().reset(task)

    @tool
    async def query(self, sql: str) -> str:
        """The result of one SQLite SELECT."""
        try:
            return await self._opened.show(sql, self._max_rows)
        except QueryRefused as error:
            raise ToolError(str(error)) from error

    async def reward(self, task: Task, answer: str) -> float:
        """1 if what ``answer`` states is what the task expects, else 0; a query may stand in a fenced block."""
        rows = task.data.get("rows")
        if rows is None:  # also where a column `rows` is empty, because other tasks of the file have rows
            return float(_same(task.data["answer"], stated_answer(answer)))
        try:
            return float(await self._opened.returns(code_in(answer, SQL), rows))
        except QueryRefused:
            return 0.0

    @property
    def _opened(self) -> TaskDatabase:
        assert self._database is not None, "reset() opens the database"
        return self._database

    def _source(self, task: Task) -> DatabaseSource:
        script, path = task.data.get("script"), task.data.get("database") or self._path
        if isinstance(script, str) and script:
            return DatabaseSource(script, "", self._seconds)
        if isinstance(path, str) and path:
            return DatabaseSource("", os.path.abspath(path), self._seconds)
        raise DatabaseError("it has no database; give the task `script` or `database`, or set environment.options.database")

    @classmethod
    def make_tasks(cls, split: str, count: int, seed: int, **options: Any) -> Sequence[Task]:
        """Make tasks on made tables; those on a database of yours come from files."""
        if options.get("database"):
            raise NotImplementedError
        return make_tasks(split, count, seed)


def _check_expected(task: Task) -> None:
    rows, answer = task.data.get("rows"), task.data.get("answer")
    problem = f"task {task.id} has rows {short(rows)} and answer {short(answer)}"
    remedy = "give one of them: `answer` as a text or number, or `rows` as a list of lists of texts, numbers and nulls"
    if (rows is None) == (answer is None):
        raise EnvironmentBroken(f"{problem}; {remedy}")
    if rows is not None and not (isinstance(rows, list) and all(map(_is_row, rows))):
        raise EnvironmentBroken(f"{problem}; {remedy}")
    if answer is not None and (says_nothing(answer) or not isinstance(answer, str | int | float)):
        raise EnvironmentBroken(f"{problem}; {remedy}")


def _is_row(row: object) -> bool:
    return isinstance(row, list) and all(value is None or isinstance(value, str | int | float) for value in row)


def _same(expected: str | float, answer: str) -> bool:
    """Whether the two are the same text up to case and space around it, or the same finite number."""
    if str(expected).strip().casefold() == answer.casefold():
        return True  # also for names that Python reads as numbers, such as Nan and Infinity
    try:
        return same_number(answer, _number(expected) if isinstance(expected, str) else expected)
    except ValueError:
        return False


def _number(text: str) -> float:
    """The number that a text is: an integer if it is written as one, since a float does not tell 10^17 from its successor.

    Raises:
        ValueError: it is none.
    """
    try:
        return int(text)
    except ValueError:
        return float(text)
