"""Turns rows of files into tasks: finds the good rows, and makes a task of a row when it is drawn.

Every row is checked once, when its file is read. A row that is not a task is named by file and line, and refused or counted; none
is left out silently.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import msgspec

from asyncrl.core.chat_prompt import chat_prompt, why_no_chat
from asyncrl.core.ids import TaskId
from asyncrl.core.task import Task
from asyncrl.core.text import short

NAMED = 3
"""Most malformed rows of a source that a message names; the others are counted."""
NESTING = 100
"""Most levels of lists and dictionaries in a task. Python's limit is far higher, but would only stop the run later."""
TOO_DEEP = f"nested more than {NESTING} levels deep"


class RowHead(NamedTuple):
    """The prompt and id of a row, or the ``problem`` because of which the row is not a task."""

    prompt: Any
    id: Any
    problem: str = ""


class RowFile(Protocol):
    """A file of rows, numbered from 0 whether they are good or not; see :class:`buffers.tasks.json_lines.JsonLines`."""

    @property
    def digest(self) -> str: ...  # noqa: D102
    def heads(self) -> Iterator[RowHead]: ...  # noqa: D102
    def where(self, position: int) -> str: ...  # noqa: D102
    def number(self, position: int) -> int: ...  # noqa: D102
    def row(self, position: int) -> dict[str, Any]: ...  # noqa: D102


class LabelledFile(NamedTuple):
    """A file and its label. A row without an id gets the id ``label:number``."""

    label: str
    rows: RowFile


class TaskRows:
    """The good rows of the files of one source, in order.

    Attributes:
        skipped: number of rows that are not a task.

    Args:
        prompt_key, id_key: keys of the prompt and the id in a row.
        id_prefix: prefix for the ids that rows have.
        taken: ids of other sources; the ids of this source are added to it.
        environment: the member of a mixture that plays the tasks.
    """

    def __init__(
        self,
        files: Sequence[LabelledFile],
        prompt_key: str,
        id_key: str,
        id_prefix: str,
        taken: set[str],
        environment: str = "",
    ) -> None:
        self._environment = environment
        self._files, self._prompt_key, self._id_key, self._id_prefix = files, prompt_key, id_key, id_prefix
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
        row = file.rows.row(position)
        task_id = TaskId(self._id(file, position, row.get(self._id_key)))
        data = {key: value for key, value in row.items() if key not in (self._prompt_key, self._id_key)}
        prompt = as_messages(row[self._prompt_key])
        asked = prompt if isinstance(prompt, str) else chat_prompt(prompt)
        return Task(id=task_id, prompt=asked, data=data, environment=self._environment)

    def _check(self, file: LabelledFile, taken: set[str]) -> Sequence[int]:
        """Return the positions of the good rows."""
        good = array("Q")
        for position, head in enumerate(file.rows.heads()):
            problem = head.problem or why_no_prompt(head.prompt) or why_no_id(head.id)
            if not problem:
                task_id = self._id(file, position, head.id)
                problem = why_repeated(head.id, task_id) if task_id in taken else ""
                taken.add(task_id)
            if problem:
                self.skipped += 1
                if len(self._problems) < NAMED:
                    self._problems.append(f"{file.rows.where(position)} {problem}")
            else:
                good.append(position)
        return good

    def _id(self, file: LabelledFile, position: int, own: Any) -> str:
        return f"{file.label}:{file.rows.number(position)}" if own is None else f"{self._id_prefix}{own}"

    def problems(self) -> str:
        """Name the first malformed rows, and count the others."""
        more = self.skipped - len(self._problems)
        return "; ".join(self._problems) + (f"; and {more} more" if more else "")


def why_no_prompt(prompt: object) -> str:
    """Say why a value is not a prompt; empty if it is one."""
    prompt = as_messages(prompt)
    if isinstance(prompt, str):
        return "" if prompt.strip() else f"has an empty prompt, {prompt!r}; ask the model something"
    if isinstance(prompt, list):
        return why_no_chat(prompt)
    return f"has prompt {short(prompt)}"


def as_messages(prompt: Any) -> Any:
    """Return a prompt that is the JSON text of chat messages as these messages, and every other one as it is.

    Tables whose columns can only hold text have messages as such. As a question to a model the text would make no sense.
    """
    if not isinstance(prompt, str) or not prompt.lstrip().startswith("["):
        return prompt
    try:
        messages = msgspec.json.decode(prompt)
    except (msgspec.DecodeError, RecursionError):
        return prompt
    is_chat = bool(messages) and all(isinstance(each, dict) and {"role", "content"} <= each.keys() for each in messages)
    return messages if is_chat else prompt


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


def is_too_deep(value: Any, levels: int = NESTING) -> bool:
    """Whether lists and dictionaries are nested more than ``levels`` deep."""
    if not isinstance(value, dict | list | tuple):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return not levels or any(is_too_deep(each, levels - 1) for each in inner)
