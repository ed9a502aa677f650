"""The endless stream of tasks, drawn from one or several sources.

Without a curriculum, the whole stream is a pure function of the seed and the number of tasks drawn. Each source gives every task
once in each epoch, and each epoch has its own order. Sources are mixed by weight, each within one draw of its share. A
stream that is restored from its state goes on exactly as if it had never stopped.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import msgspec

from asyncrl.buffers.tasks.curriculum import CheckedCurriculum, Curriculum
from asyncrl.buffers.tasks.hub_datasets import name_of
from asyncrl.buffers.tasks.mixing import Mixer, shares_of
from asyncrl.buffers.tasks.permutation import Permutation
from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.recipe.tasks import TaskFileConfig
from asyncrl.core.storage.address import is_address
from asyncrl.core.task import Task


class NoTaskLeft(AsyncRLError):
    """The prompts of all tasks of a source are too long, so that there is nothing to draw.

    Args:
        source: name of the source.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        problem = f"the prompts of all tasks of {source} are too long for model.max_context"
        super().__init__(f"{problem}, and each is left out; raise it, or shorten the prompts")


class Tasks(Protocol):
    """A sequence of tasks. It may make a task only when the task is asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Task: ...


class TaskSource(msgspec.Struct, frozen=True):
    """A source of tasks.

    Attributes:
        name: name of the source, unique in its stream.
        tasks: the tasks, at least one; their ids are unique over all sources of a stream.
        weight: how often tasks are drawn from this source, relative to the other sources.
        skipped: malformed rows that were left out.
        digest: digest of the content; if empty, it is computed from the tasks.
    """

    name: str
    tasks: Tasks
    weight: float = 1.0
    skipped: int = 0
    digest: str = ""


class Drawn(msgspec.Struct, frozen=True):
    """A task, the name of its source, and its place there."""

    task: Task
    source: str
    index: int


class TaskStream:
    """An endless stream of tasks.

    Attributes:
        sources: where the tasks come from.
        skipped: malformed rows that were left out, by source.

    Args:
        sources: in the order of the recipe.
        seed: seed of the order within each source.
        curriculum: changes the weights of the sources; None leaves them as they are.

    Raises:
        RecipeError: there is no source, or a source has no task.
    """

    def __init__(self, sources: Sequence[TaskSource], seed: int, curriculum: Curriculum | None = None) -> None:
        if not sources or not all(len(source.tasks) for source in sources):
            raise RecipeError("tasks", "there is not a single task", "give at least one in each source")
        self.sources = tuple(sources)
        self.skipped: Mapping[str, int] = {source.name: source.skipped for source in sources}
        self._seed = seed
        self._orders = [_Order(source, seed) for source in sources]
        self._by_name = {order.source.name: order for order in self._orders}
        self._mixer, self._max_context = Mixer(len(sources)), 0
        self._shares = shares_of([source.weight for source in sources])
        self._curriculum = None if curriculum is None else CheckedCurriculum(curriculum, len(sources))

    @property
    def drawn(self) -> Mapping[str, int]:
        """Number of tasks drawn from each source."""
        return {order.source.name: order.position - order.passed for order in self._orders}

    @property
    def shares(self) -> Mapping[str, float]:
        """The share of each source in the draws, as it was at the last draw. The shares add up to 1."""
        whole = sum(self._shares)
        return {source.name: share / whole for source, share in zip(self.sources, self._shares, strict=True)}

    def next(self) -> Drawn:
        """Draw the next task.

        Raises:
            CurriculumBroken: the curriculum returned no valid weights; nothing was drawn.
            NoTaskLeft: the prompts of all tasks of the source whose turn it is are too long.
        """
        if self._curriculum is not None:
            self._shares = shares_of(self._curriculum.weights())
        order = self._orders[self._mixer.draw(self._shares)]
        index = order.next()
        return Drawn(order.source.tasks[index], order.source.name, index)

    def leave_out(self, source: str, index: int) -> None:
        """Never draw a task again: its prompt is too long. A task that is left out already may be named again."""
        self._by_name[source].too_long.add(index)

    def set_too_long(self, max_context: int, tasks: Mapping[str, Iterable[int]]) -> None:
        """Never draw these tasks: their prompts are too long for ``max_context``.

        Tasks that were left out with another context are drawn again, unless they are among these.
        """
        if max_context != self._max_context:
            self._max_context = max_context
            for order in self._orders:
                order.too_long.clear()
        for source, indexes in tasks.items():
            self._by_name[source].too_long.update(indexes)

    @property
    def too_long(self) -> Mapping[str, int]:
        """How many tasks of each source are left out because their prompts are too long; sources without any are not named."""
        return {order.source.name: len(order.too_long) for order in self._orders if order.too_long}

    def observe(self, source: str, rewards: Sequence[float]) -> None:
        """Tell the curriculum, if there is one, the rewards of a finished group of ``source``.

        Raises:
            CurriculumBroken: the curriculum raised an error.
        """
        if self._curriculum is not None:
            self._curriculum.observe(source, rewards)

    def state(self) -> bytes:
        """Return everything that changes, for :meth:`restore` of a stream with the same fingerprint.

        Raises:
            CurriculumBroken: the curriculum's state cannot be stored.
        """
        state = _State(
            drawn=[order.position for order in self._orders],
            passed=[order.passed for order in self._orders],
            too_long=[sorted(order.too_long) for order in self._orders],
            max_context=self._max_context,
            credit=self._mixer.credit,
            curriculum=None if self._curriculum is None else self._curriculum.state(),
        )
        return msgspec.msgpack.encode(state)

    def restore(self, state: bytes) -> None:
        """Continue from a state that :meth:`state` returned.

        Raises:
            CurriculumBroken: the curriculum raised an error.
        """
        restored = msgspec.msgpack.decode(state, type=_State)
        if self._curriculum is not None and restored.curriculum is not None:
            self._curriculum.restore(restored.curriculum)
        self._mixer.credit = restored.credit
        self._max_context = restored.max_context
        places = zip(self._orders, restored.drawn, restored.passed, restored.too_long, strict=True)
        for order, drawn, passed, too_long in places:
            order.position, order.passed, order.too_long = drawn, passed, set(too_long)

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """Digest of the content of each source."""
        return tuple(_digest(source) for source in self.sources)

    def fingerprint(self) -> str:
        """Return a digest of the seed and of the sources' names and content.

        Streams with equal fingerprints draw the same tasks from equal states.
        """
        content = [(source.name, len(source.tasks), digest) for source, digest in zip(self.sources, self.digests, strict=True)]
        return blake2b(msgspec.json.encode((self._seed, content)), digest_size=16).hexdigest()


class _State(msgspec.Struct, frozen=True):
    """The state that a stream is restored from.

    Attributes:
        drawn: number of tasks of each source that were drawn or passed over.
        passed: how many of these were passed over, because their prompts are too long.
        too_long: places of the tasks of each source that are never drawn any more.
        max_context: the context for which their prompts are too long.
        credit: credit of the mixer.
        curriculum: state of the curriculum; None if there is none.
    """

    drawn: list[int]
    passed: list[int]
    too_long: list[list[int]]
    max_context: int
    credit: list[int]
    curriculum: dict[str, Any] | None


class _Order:
    """The order of tasks within one source, epoch after epoch.

    Attributes:
        position: how many tasks were drawn or passed over.
        passed: how many were passed over.
        too_long: places of the tasks that are passed over.
    """

    def __init__(self, source: TaskSource, seed: int) -> None:
        self.source, self._seed = source, seed
        self.position = self.passed = 0
        self.too_long: set[int] = set()
        self._epoch = -1

    def next(self) -> int:
        """Draw the next task, and return its place in the source."""
        if len(self.too_long) == len(self.source.tasks):
            raise NoTaskLeft(self.source.name)
        while (index := self._next()) in self.too_long:
            self.passed += 1
        return index

    def _next(self) -> int:
        epoch, index = divmod(self.position, len(self.source.tasks))
        if epoch != self._epoch:
            self._epoch = epoch
            self._shuffled = Permutation(len(self.source.tasks), f"{self._seed}/{self.source.name}/{epoch}")
        self.position += 1
        return self._shuffled[index]


def _digest(source: TaskSource) -> str:
    tasks = [source.tasks[index] for index in range(len(source.tasks))] if not source.digest else []
    return source.digest or blake2b(msgspec.msgpack.encode(tasks), digest_size=16).hexdigest()


def source_names(files: Sequence[TaskFileConfig], place: str) -> list[str]:
    """Return a name for each source: the end of its path, long enough to be unique, and ``:split`` if it has one.

    In a mixture of environments it begins with the member and a slash.

    Raises:
        RecipeError: two sources have the same path, split and environment.
    """
    plain = [file.path.partition("?")[0] if is_address(file.path) else file.path for file in files]
    sources = [(Path(name_of(path)), _part(file), file.environment) for path, file in zip(plain, files, strict=True)]
    for index, source in enumerate(sources):
        if source in sources[:index]:
            raise RecipeError(f"{place}[{index}]", f"{source[0]} is listed twice", "name it once, with a larger weight")
    return [_name(source, sources) for source in sources]


def _part(file: TaskFileConfig) -> str:
    """Which part of a data set is read: subset and split, as far as they are named."""
    return ":".join(filter(None, (file.subset, file.split)))


def _name(source: tuple[Path, str, str], sources: Sequence[tuple[Path, str, str]]) -> str:
    def end(of: tuple[Path, str, str], parts: int) -> str:
        path, split, environment = of
        return (f"{environment}/" if environment else "") + "/".join(path.parts[-parts:]) + (f":{split}" if split else "")

    parts = 1
    while sum(end(other, parts) == end(source, parts) for other in sources) > 1:
        parts += 1
    return end(source, parts)
