"""Where tasks come from: an ordered, endless stream that is a pure function of (seed, epoch, position)."""

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.task import Task


class TaskSource:
    """Epoch after epoch over the same tasks, each epoch in its own order. The only state is the position."""

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        if not tasks:
            raise RecipeError("tasks", "there is not a single task", "give at least one")
        self._tasks, self._seed = tasks, seed
        self._order: list[int] = []
        self.position = 0

    def next(self) -> Task:
        """The task at ``position``, which moves on."""
        epoch, index = divmod(self.position, len(self._tasks))
        if index == 0 or not self._order:
            self._order = list(range(len(self._tasks)))
            random.Random(f"{self._seed}/{epoch}").shuffle(self._order)
        self.position += 1
        return self._tasks[self._order[index]]


def read_json_lines(path: Path, place: str) -> list[Task]:
    """Tasks from a JSON-lines file: ``prompt``, optionally ``id`` (default ``file:line``); all other keys become ``Task.data``.

    Args:
        path: of the file.
        place: recipe key to blame, e.g. ``tasks.train``.

    Raises:
        RecipeError: the file is missing or empty, a row is no JSON object with a string ``prompt``, or two rows share an id.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(place, f"cannot read {path} ({error})", "name a readable UTF-8 file of JSON lines") from error
    tasks: dict[TaskId, Task] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = msgspec.json.decode(line, type=dict)
        except msgspec.DecodeError as error:
            raise RecipeError(place, f"{where} is no JSON object ({error})", "mend or remove that line") from error
        prompt, task_id = row.pop("prompt", None), str(row.pop("id", f"{path.name}:{number}"))
        if not isinstance(prompt, str):
            raise RecipeError(place, f"{where} has prompt {prompt!r}", 'give it a string under "prompt"')
        if task_id in tasks:
            raise RecipeError(place, f"{where} repeats the id {task_id!r}", "ids must be unique within a file")
        tasks[TaskId(task_id)] = Task(id=TaskId(task_id), prompt=prompt, data=row)
    if not tasks:
        raise RecipeError(place, f"{path} holds no task", "give at least one line")
    return list(tasks.values())
