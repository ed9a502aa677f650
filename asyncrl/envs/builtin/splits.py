"""Made tasks of one split. What always holds: the content of a task decides its split, so no task is ever in both."""

import zlib
from collections.abc import Callable

from asyncrl.core.task import Task

TRIES = 50
"""How often a task is made for each one that is asked for, at most: there may be fewer different ones."""


def split_of(content: str, one_in: int = 8) -> str:
    """Return ``train`` or ``evaluation``; one task in so many is for evaluation."""
    return "evaluation" if zlib.crc32(content.encode()) % one_in == 0 else "train"


def different_tasks(split: str, count: int, make: Callable[[int], Task]) -> list[Task]:
    """Return up to ``count`` tasks of ``split`` with different ids.

    Args:
        make: makes a task, given how many there are already.
    """
    found: dict[str, Task] = {}
    for _ in range(TRIES * count):
        if len(found) == count:
            break
        task = make(len(found))
        if split_of(task.question) == split:
            found.setdefault(task.id, task)
    return list(found.values())
