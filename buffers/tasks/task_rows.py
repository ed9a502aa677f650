"""The rows of a source of tasks: finds the good rows, and makes a task of a row when it is drawn.

Every row is checked once, when its file is read. A row that is not a task is named by file and line, and refused or counted; none
is left out silently.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import msgspec

from asyncrl.buffers.tasks.plain_values import TOO_DEEP, is_too_deep
from asyncrl.buffers.tasks.task_columns import TOOLS, Asked, Columns, Misfit
from asyncrl.core.ids import TaskId
from asyncrl.core.task import Task
from asyncrl.core.text import pluralize, short

NAMED = 3
"""Most malformed rows of a source that a message names; the others are counted."""


class Row(NamedTuple):
    """The columns of a row that tell what it asks, or more; or the ``problem`` because of which it cannot be read."""

    columns: Mapping[str, Any]
    problem: str = ""


class RowFile(Protocol):
    """A file of rows, numbered from 0 whether they are good or not; see :class:`asyncrl.buffers.tasks.json_rows.JsonRows`."""

    @property
    def digest(self) -> str: ...  # noqa: D102
    @property
    def whole(self) -> bool: ...  # noqa: D102
    @property
    def long_integers(self) -> Mapping[str, None]: ...  # noqa: D102
    def rows(self) -> Iterator[Row]: ...  # noqa: D102
    def where(self, position: int) -> str: ...  # noqa: D102
    def number(self, position: int) -> int: ...  # noqa: D102
    def row(self, position: int) -> dict[str, Any]: ...  # noqa: D102
    def has(self, path: str) -> bool: ...  # noqa: D102
    def names(self) -> list[str]: ...  # noqa: D102


class LabelledFile(NamedTuple):
    """A file and its label. A row without an id gets the id ``label:number``."""

    label: str
    rows: RowFile


class TaskRows:
    """The good rows of the files of one source, in order.

    Attributes:
        skipped: number of rows that are not a task.

    Args:
        id_prefix: prefix for the ids that rows have.
        taken: ids of other sources; the ids of this source are added to it.
        environment: the member of a mixture that plays the tasks.
    """

    def __init__(
        self, files: Sequence[LabelledFile], columns: Columns, id_prefix: str, taken: set[str], environment: str = ""
    ) -> None:
        self._environment = environment
        self._has_json = any(key.startswith("json") for key, _ in columns.paths())
        self._files, self._columns, self._id_prefix = files, columns, id_prefix
        self._problems: list[str] = []
        self.skipped = 0
        self._good = [self._check(file, taken) for file in files]
        self._ends = list(accumulate(len(good) for good in self._good))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(f"task {index} of {len(self)}")
        number = bisect_right(self._ends, index)
        good, file = self._good[number], self._files[number]
        position = good[index - self._ends[number] + len(good)]
        row, columns = file.rows.row(position), self._columns
        asked = columns.asked(row)
        return Task(
            id=TaskId(self._id(file, position, columns.own_id(row))),
            prompt=asked.prompt,
            data=columns.data(row, asked.reference),
            environment=self._environment,
            tools=asked.tools,
        )

    def _check(self, file: LabelledFile, taken: set[str]) -> Sequence[int]:
        """Return the positions of the good rows."""
        good = array("Q")
        for position, row in enumerate(file.rows.rows()):
            own = self._columns.own_id(row.columns)
            problem = row.problem or self._why_no_task(row.columns, file.rows.whole) or why_no_id(own)
            if not problem:
                task_id = self._id(file, position, own)
                problem = why_repeated(own, task_id) if task_id in taken else ""
                taken.add(task_id)
            if problem:
                self.skipped += 1
                if len(self._problems) < NAMED:
                    self._problems.append(f"{file.rows.where(position)} {problem}")
            else:
                good.append(position)
        return good

    def _why_no_task(self, row: Mapping[str, Any], whole: bool) -> str:
        try:
            asked = self._columns.asked(row)
            if whole or self._has_json:
                self._columns.check_data(row, whole)
            data = self._columns.data(row, asked.reference) if self._has_json else asked.reference
        except Misfit as misfit:
            return str(misfit)
        return _why_not_sent(asked, data)

    def _id(self, file: LabelledFile, position: int, own: Any) -> str:
        return f"{file.label}:{file.rows.number(position)}" if own is None else f"{self._id_prefix}{own}"

    def problems(self) -> str:
        """Name the first malformed rows, and count the others."""
        more = self.skipped - len(self._problems)
        return "; ".join(self._problems) + (f"; and {more} more" if more else "")

    def remarks(self) -> Iterator[str]:
        """Yield sentences for the user about what was left out, and about what was read in another way than is written."""
        if self.skipped:
            rows = len(self) + self.skipped
            yield f"{self.skipped:,} of {rows:,} rows are malformed and left out: {self.problems()}"
        found = (self._columns.long_integers, *(file.rows.long_integers for file in self._files))
        long = list(dict.fromkeys(name for each in found for name in each))
        if long:
            yield f"integers of more than 64 bits are given as text ({pluralize(len(long), 'column')}: {', '.join(long)})"
        if not self._columns.shows_tools and any(file.rows.has(TOOLS) for file in self._files):
            told = "the model is not told of the tools in column 'tools', only the environment is"
            yield f"{told}; set columns: {{tools: tools}} to show them"


def _why_not_sent(asked: Asked, data: Mapping[str, Any]) -> str:
    """Say which JSON text within a row holds what cannot go through tickets and the journal; empty if none does."""
    prompt = asked.prompt if isinstance(asked.prompt, tuple) else ()
    calls = [call.arguments for message in prompt for call in message.tool_calls]
    if any(map(is_too_deep, [dict(data), *calls, *(tool.parameters for tool in asked.tools)])):
        return f"has JSON text that is {TOO_DEEP}; flatten it"
    try:
        msgspec.msgpack.encode((calls, asked.reference))
    except OverflowError:
        return "has a call with an integer of more than 64 bits in its JSON text; write that integer as text"
    return ""


def why_no_id(own: object) -> str:
    """Say why a value is not an id; empty if it is one, or None, which means that the row has no id."""
    if own is None or (isinstance(own, str) and own) or (isinstance(own, int) and not isinstance(own, bool)):
        return ""
    return f"has id {short(own)}, which is neither text nor an integer"


def why_repeated(own: object, task_id: str) -> str:
    """Say that another row has the same id."""
    if own is None:
        return f"has no id, and its place, {task_id!r}, is the id of another row; give it an id of its own"
    return f"repeats the id {own!r}"
