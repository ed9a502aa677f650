"""The tasks and the recipe keys that a resumed run may not change: the identity of a run's journal.

The buffer's behaviour depends on them, so replaying the same records with others would give another state.
"""

from pathlib import Path
from typing import Any

import msgspec

from asyncrl.buffers.limits import Limits
from asyncrl.buffers.tasks.recorded_tasks import RecordedSource, recorded_sources
from asyncrl.buffers.tasks.task_stream import TaskStream
from asyncrl.core.errors import AsyncRLError
from asyncrl.core.recipe.buffer import BufferConfig
from asyncrl.core.recipe.flatten import flatten
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.tasks import FileTasksConfig

_DEPTH = "pipeline_depth"


class JournalOfAnotherRun(AsyncRLError):
    """The journal was written with another recipe or other tasks, so it cannot be replayed."""


class Identity(msgspec.Struct, frozen=True):
    """The recipe and tasks that a journal belongs to. A replay depends on them and on the records.

    Attributes:
        tasks: fingerprint of the task stream.
        recipe: the recipe keys that the buffer's behaviour depends on, and their values. Paths of task files are not among them.
            A resume may change ``buffer.pipeline_depth`` alone; here it is what the run began with.
        sources: where the tasks came from, for those who look into the journal without having the tasks.
    """

    tasks: str
    recipe: dict[str, Any]
    sources: tuple[RecordedSource, ...]

    @classmethod
    def of(cls, recipe: Recipe, tasks: TaskStream) -> "Identity":
        """Return the identity of a run, which its journal is written with."""
        return cls(tasks.fingerprint(), _keys_of(recipe), recorded_sources(tasks))

    def encoded(self) -> bytes:
        """Encode the identity as the journal's files hold it."""
        return msgspec.json.encode(self)

    @property
    def first_depth(self) -> int:
        """The pipeline depth that the run began with."""
        buffer = self.recipe["buffer"]
        return BufferConfig(max_staleness=buffer["max_staleness"], pipeline_depth=buffer[_DEPTH]).first_depth

    def going_on(self, recorded: bytes, folder: Path) -> "Identity":
        """Compare this identity with ``recorded``, the encoded one that the journal in ``folder`` was written with.

        Returns:
            the identity that the journal has from now on, with the pipeline depth that the run began with.

        Raises:
            JournalOfAnotherRun: they differ; the message names what differs.
        """
        before = msgspec.json.decode(recorded, type=Identity)
        buffer = {**self.recipe["buffer"], _DEPTH: before.recipe["buffer"][_DEPTH]}
        begun = msgspec.structs.replace(self, recipe={**self.recipe, "buffer": buffer})
        begun._check(before, folder)
        return begun

    def _check(self, recorded: "Identity", folder: Path) -> None:
        _check_keys(self.recipe, recorded.recipe, folder)
        if self.tasks != recorded.tasks:
            raise JournalOfAnotherRun(
                f"{folder} was written with other tasks (fingerprint {recorded.tasks}, now {self.tasks}); "
                "put the task files back as they were when the run began, or launch a new run"
            )


def _keys_of(recipe: Recipe) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins({key: getattr(recipe, key) for key in ("seed", "batch", "buffer", "tasks")})
    del values["buffer"]["journal"], values["tasks"]["evaluation"], values["tasks"]["too_long"]
    for name in Limits.__struct_fields__:  # a resume may change these
        del values["buffer"][name]
    if isinstance(recipe.tasks, FileTasksConfig):
        for source in values["tasks"]["train"]:
            del source["path"]
    return values


def _check_keys(now: dict[str, Any], recorded: dict[str, Any], folder: Path) -> None:
    is_now, was = ({key: msgspec.json.encode(value).decode() for key, value in flatten(values)} for values in (now, recorded))
    if changed := sorted({key for key, _ in is_now.items() ^ was.items()}):
        differences = ", ".join(f"{key} was {was.get(key, 'not there')} and is {is_now.get(key, 'not there')}" for key in changed)
        raise JournalOfAnotherRun(
            f"{folder} was written with another recipe: {differences}; resume with the recipe the run began with, or launch a "
            "new run"
        )
