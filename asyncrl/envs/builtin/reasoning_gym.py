"""Built-in environment: families of verifiable tasks from the library reasoning-gym, answered in one turn without tools.

The library's own scorer gives the reward, in a process that can be killed. An item follows from its family, the family's options,
and a seed; which split it belongs to is decided by a checksum of its question, so no question is ever in both, whatever the seeds
and counts.
"""

import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.task import Task
from asyncrl.core.text import writable
from asyncrl.envs.builtin.reasoning_gym_families import MOST_ITEMS, Families, Family, Item, open_data_set
from asyncrl.envs.builtin.splits import split_of
from asyncrl.envs.hosting.guarded_calls import Overdue
from asyncrl.envs.hosting.tool_processes import ProcessEnded
from asyncrl.envs.stated_answer import stated_answer
from asyncrl.envs.tools import ToolEnvironment

EVALUATED = 5
"""One question in this many is for evaluation."""
FUTILE = 500
"""Items in a row without a new question of the split, after which a family counts as used up."""


class ReasoningGym(ToolEnvironment):
    """The model answers a task; the library scores the answer.

    Args:
        families: the families by name, as https://github.com/open-thought/reasoning-gym lists them.
        system_prompt: the system message before each task; none if empty.
    """

    def __init__(self, families: dict[str, Family], system_prompt: str = "") -> None:
        self.system_prompt = system_prompt

    @classmethod
    @asynccontextmanager
    async def share(cls, **options: Any) -> AsyncIterator[Families]:
        """Load the families for all episodes."""
        yield Families(options["families"])

    async def reward(self, task: Task, answer: str) -> float:
        """The library's score, from 0 to 1, of what the answer states; 0 if the scorer does not get to its end."""
        from asyncrl.envs.builtin.reasoning_gym_scoring import SECONDS, Scoring  # late: it needs the library

        self.shared.check(task)
        data = msgspec.json.encode(task.data).decode()
        arguments = {"families": self.shared.described, "data": data, "answer": writable(stated_answer(answer))}
        try:
            return float(await Scoring.call(self._asyncrl_processes, "score", arguments, SECONDS))
        except (Overdue, ProcessEnded):
            return 0.0

    @classmethod
    def make_tasks(cls, split: str, count: int, seed: int, **options: Any) -> Sequence[Task]:
        """Make up to ``count`` tasks of ``split``, of the families in proportion to their weights."""
        families: dict[str, Family] = options["families"]
        if not families:
            raise RecipeError("environment.options.families", "there is no family", "name at least one")
        sources = {name: _tasks(name, family, split, seed) for name, family in families.items()}
        made: dict[str, int] = dict.fromkeys(families, 0)
        tasks: list[Task] = []
        while sources and len(tasks) < count:
            name = min(sources, key=lambda each: (made[each] + 1) / families[each].weight)
            task = next(sources[name], None)
            if task is None:
                del sources[name]
            else:
                made[name] += 1
                tasks.append(task)
        return tasks


def _tasks(name: str, family: Family, split: str, seed: int) -> Iterator[Task]:
    """Yield different tasks of one family, until none is new any more."""
    first = seed * MOST_ITEMS  # the library adds the index to the seed
    items = open_data_set(name, family, first)
    seen: set[int] = set()
    futile = 0
    for index in range(MOST_ITEMS):
        entry = items[index]
        question = str(entry["question"])
        content = f"{name} {question}"
        checksum = zlib.crc32(content.encode())
        if checksum in seen or split_of(content, EVALUATED) != split:
            futile += 1
            if futile == FUTILE:
                return
            continue
        futile = 0
        seen.add(checksum)
        item = Item(name, first, index, None if entry["answer"] is None else str(entry["answer"]))
        yield Task(id=TaskId(f"{name}-{checksum:08x}"), prompt=question, data=msgspec.to_builtins(item))
