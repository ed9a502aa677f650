"""The tasks of a run as its journal records them: how many each source has, without the tasks themselves.

A replay of the journal needs no more, so a buffer can be looked into where the task files are not.
"""

from collections.abc import Sequence

import msgspec

from asyncrl.buffers.tasks.curriculum import Curriculum
from asyncrl.buffers.tasks.task_stream import TaskSource, TaskStream
from asyncrl.core.ids import TaskId
from asyncrl.core.task import Task


class RecordedSource(msgspec.Struct, frozen=True):
    """A source of training tasks; see :class:`asyncrl.buffers.tasks.task_stream.TaskSource`.

    Attributes:
        tasks: how many tasks the source has.
    """

    name: str
    tasks: int
    weight: float
    skipped: int
    digest: str


class _Unread:
    """The tasks of a source, each with a name that tells its place instead of its own id."""

    def __init__(self, source: RecordedSource) -> None:
        self._source = source

    def __len__(self) -> int:
        return self._source.tasks

    def __getitem__(self, index: int, /) -> Task:
        return Task(id=TaskId(f"{self._source.name}[{index}]"), prompt="")


def recorded_sources(tasks: TaskStream) -> tuple[RecordedSource, ...]:
    """Describe the sources of a stream, in their order."""
    return tuple(
        RecordedSource(source.name, len(source.tasks), source.weight, source.skipped, digest)
        for source, digest in zip(tasks.sources, tasks.digests, strict=True)
    )


def recorded_stream(sources: Sequence[RecordedSource], seed: int, curriculum: Curriculum | None) -> TaskStream:
    """Make a stream that draws from the same places as the one whose sources were recorded, and has its fingerprint."""
    unread = [TaskSource(source.name, _Unread(source), source.weight, source.skipped, source.digest) for source in sources]
    return TaskStream(unread, seed, curriculum)
