"""Built-in environment: families of verifiable tasks from the library reasoning-gym, answered in one turn without tools.

The library's own scorer gives the reward, in a process that can be killed. An item follows from its family, the family's options,
and a seed; which split it belongs to is decided by a checksum of its question, so no question is ever in both, whatever the seeds
and counts.
"""

import importlib
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from difflib import get_close_matches
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from asyncrl.core.errors import EnvironmentBroken, RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.task import Task
from asyncrl.core.text import told, writable
from asyncrl.envs.builtin.splits import split_of
from asyncrl.envs.hosting.contained import Overdue
from asyncrl.envs.hosting.tool_processes import ProcessEnded, ToolProcesses
from asyncrl.envs.tools import ToolEnvironment

if TYPE_CHECKING:
    from asyncrl.envs.builtin.lessons.base import Lessons

PACKAGE = "reasoning-gym==0.1.25"
EVALUATED = 5
"""One question in this many is for evaluation."""
FUTILE = 500
"""Items in a row without a new question of the split, after which a family counts as used up."""
UNREPEATABLE = ("isomorphic_strings", "polynomial_multiplication", "ransom_note")
"""Families whose items depend on the order of Python's sets, so the process that scores would have other items than the one that
made the tasks."""
MOST_ITEMS = 2**20
"""Size of the data sets that items are taken from, and distance of their seeds. An item is made when it is asked for."""


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A family of tasks.

    Attributes:
        weight: how many tasks are of this family, relative to the other families.
        options: settings of the family in the library, such as ``min_word_len``.
    """

    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    options: dict[str, Any] = {}


class ReasoningGym(ToolEnvironment):
    """The model answers a task; the library scores the answer.

    Args:
        families: the families by name, as https://github.com/open-thought/reasoning-gym lists them.
        system_prompt: the system message before each task; none if empty.
    """

    def __init__(self, families: dict[str, Family], system_prompt: str = "") -> None:
        self.system_prompt = system_prompt
        self._own: ToolProcesses | None = None

    @classmethod
    @asynccontextmanager
    async def share(cls, **options: Any) -> AsyncIterator["Families"]:
        """Load the families for all episodes."""
        yield Families(options["families"])

    async def reward(self, task: Task, answer: str) -> float:
        """The library's score, from 0 to 1, of the answer without space around it; 0 if the scorer does not get to its end."""
        from asyncrl.envs.builtin.reasoning_gym_scoring import SECONDS, Scoring  # which needs the library

        self.shared.check(task)
        data = msgspec.json.encode(task.data).decode()
        arguments = {"families": self.shared.described, "data": data, "answer": writable(answer.strip())}
        try:
            return float(await Scoring.call(self._processes(), "score", arguments, SECONDS))
        except (Overdue, ProcessEnded):
            return 0.0

    async def close(self) -> None:
        """End the processes that were started outside a run."""
        if self._own is not None:
            self._own.close()

    def _processes(self) -> ToolProcesses:
        if self.provided.processes is not None:
            return self.provided.processes
        self._own = self._own or ToolProcesses(type(self).__name__, most=1)
        return self._own

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

    @classmethod
    def lessons(cls, **options: Any) -> "Lessons | None":
        """Return the lessons, if there are some for all families."""
        from asyncrl.envs.builtin.lessons.reasoning_gym import ReasoningGymLessons  # which needs this module

        families = Families(options["families"])
        return ReasoningGymLessons(families) if families.names <= ReasoningGymLessons.FAMILIES else None


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a task comes from: the data of tasks of this environment.

    Attributes:
        family, seed, index: determine the item.
        answer: the answer that is expected, or one of them, for people who read episodes.
    """

    family: str
    seed: int
    index: int
    answer: str | None


class Families:
    """The library's data sets of some families. Items are made again where they are needed: not all can be written down."""

    def __init__(self, families: Mapping[str, Family]) -> None:
        self._families = families
        self._data_sets = {(name, 0): _data_set(name, family, 0) for name, family in families.items()}

    @property
    def names(self) -> Set[str]:
        """Names of the families."""
        return self._families.keys()

    @property
    def described(self) -> str:
        """The families as JSON."""
        return msgspec.json.encode(self._families).decode()

    def check(self, task: Task) -> None:
        """See that the task is one of these families.

        Raises:
            EnvironmentBroken: it is not.
        """
        self._item(task)

    def entry(self, task: Task) -> dict[str, Any]:
        """Return the library's item of a task."""
        item, data_set = self._find(task)
        found: dict[str, Any] = data_set[item.index]
        return found

    def score(self, task: Task, answer: str) -> float:
        """Return the library's score of an answer."""
        item, data_set = self._find(task)
        return float(data_set.score_answer(answer, data_set[item.index]))

    def _find(self, task: Task) -> tuple[Item, Any]:
        item = self._item(task)
        key = item.family, item.seed
        if key not in self._data_sets:
            self._data_sets[key] = _data_set(item.family, self._families[item.family], item.seed)
        return item, self._data_sets[key]

    def _item(self, task: Task) -> Item:
        try:
            item = msgspec.convert(task.data, Item)
        except msgspec.ValidationError as error:
            problem = f"task {task.id} was not made by this environment ({error})"
            raise EnvironmentBroken(f"{problem}; set tasks.kind to `generated`") from error
        if item.family not in self._families:
            raise EnvironmentBroken(f"task {task.id} is of family {item.family!r}; there are {', '.join(self._families)}")
        return item


def _tasks(name: str, family: Family, split: str, seed: int) -> Iterator[Task]:
    """Yield different tasks of one family, until none is new any more."""
    first = seed * MOST_ITEMS  # the library adds the index to the seed
    data_set = _data_set(name, family, first)
    seen: set[int] = set()
    futile = 0
    for index in range(MOST_ITEMS):
        entry = data_set[index]
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


def _data_set(name: str, family: Family, seed: int) -> Any:
    """Return the library's data set of a family.

    Raises:
        RecipeError: the library or the family is missing, or the options are wrong.
    """
    library, place = _library(), f"environment.options.families.{name}"
    known = importlib.import_module("reasoning_gym.factory").DATASETS
    if name not in known:
        near = get_close_matches(name, known, n=1)
        remedy = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(sorted(known))}"
        raise RecipeError(place, f"reasoning-gym has no family {name!r}", remedy)
    if name in UNREPEATABLE:
        raise RecipeError(place, "its items differ from process to process, so no answer could be scored", "leave it out")
    if taken := family.options.keys() & {"seed", "size"}:
        raise RecipeError(f"{place}.options.{min(taken)}", "it is set by the run", "leave it out; see `seed` and `tasks`")
    try:
        return library.create_dataset(name, seed=seed, size=MOST_ITEMS, **family.options)
    except Exception as error:  # the library checks options by assertions, and by what its constructors raise
        raise RecipeError(f"{place}.options", f"{family.options} is refused: {told(error)}", "see the family's Config") from error


def _library() -> ModuleType:
    try:
        return importlib.import_module("reasoning_gym")
    except ModuleNotFoundError as error:
        problem = f"the environment reasoning_gym needs the package {error.name}, which is missing"
        raise RecipeError(
            "environment.name", problem, f"run `pip install {PACKAGE}`, or `pip install asyncrl[reasoning-gym]`"
        ) from error
