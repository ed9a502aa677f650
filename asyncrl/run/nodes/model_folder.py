"""The folder of a model, for processes on any node: a node that does not see it gets a copy.

What always holds: a node copies a model once, however many processes there need it; a copy is there whole or not at all, and
stays while a process loads it; a folder of the same name counts as the model only if :mod:`asyncrl.run.models.model_identity`
finds no difference.
"""

import fcntl
import hashlib
import os
import shutil
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.files.file_errors import naming
from asyncrl.core.files.memory_files import free_memory
from asyncrl.learners.tiny.cache import default_cache_root
from asyncrl.run.host.ray_calls import INLINE_BYTES, ask_blocking
from asyncrl.run.models.model_identity import ModelFile, model_files

LARGE, SMALL = (8 << 20, 4), (INLINE_BYTES, 64)
"""The most bytes of a chunk, and how many chunks are on their way at the same time. Large ones are faster."""
ROOM_BYTES = 256 << 20
"""What must be free in the memory file systems of both nodes for large chunks, which go through Ray's object stores."""
ANSWER_S = 120.0
"""How long a chunk may take, in seconds."""


class ModelFolder(msgspec.Struct, frozen=True):
    """A model's Hugging Face folder on the driver's node, as it is given to processes on all nodes.

    Attributes:
        path: the folder on the driver's node.
        files: its files when the run was launched; none if the run has no other node.
        source: the actor of the files of the driver's node; None if the run has no other node.
    """

    path: Path
    files: tuple[ModelFile, ...]
    source: Any

    @contextmanager
    def loading(self) -> Iterator[Path]:
        """Give the model's folder on this node, which nobody removes in this context; blocks while it is copied.

        Raises:
            DeadlineExceeded: the driver's node did not send it in time.
            ComponentFailed: the driver's node is gone.
            OSError: there is no room for it.
        """
        if self.source is None or model_files(self.path) == self.files:
            yield self.path
            return
        copy = self._copies() / self.path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        with _lock_file(self._copying) as copying, _lock_file(self._in_use) as in_use:
            fcntl.flock(copying, fcntl.LOCK_EX)  # the process that holds it copies, with a deadline for each chunk
            if not copy.is_dir():
                draft = copy.with_name(f".{copy.name}")
                shutil.rmtree(draft, ignore_errors=True)
                self._copy_to(draft)
                if model_files(draft) != self.files:
                    raise OSError(f"{self.path} has changed while it was copied to this node; launch again")
                draft.rename(copy)
            fcntl.flock(in_use, fcntl.LOCK_SH)  # never waits: who removes the copy has the other lock before this one
            fcntl.flock(copying, fcntl.LOCK_UN)
            yield copy

    def remove_copy(self) -> None:
        """Remove the copy on this node, which no process of the caller needs any more. If there is none, or somebody else is
        making or loading it at this moment, nothing happens. Its locks stay: without them two processes could copy at once."""
        if not self._copying.exists():
            return
        with _lock_file(self._copying) as copying, _lock_file(self._in_use) as in_use, suppress(BlockingIOError):
            for lock in (copying, in_use):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self._copies() / self.path.name, ignore_errors=True)

    @property
    def _copying(self) -> Path:
        """Locked by who makes the copy or removes it."""
        return self._copies() / "lock"

    @property
    def _in_use(self) -> Path:
        """Locked by all who load the copy, and by who removes it."""
        return self._copies() / "in-use"

    def _copies(self) -> Path:
        """The folder of this node's copy and its lock."""
        return default_cache_root().parent / "models" / self._digest()

    def _copy_to(self, folder: Path) -> None:
        for file in self.files:
            path = folder / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with naming(path), path.open("wb") as copy:
                for content in self._chunks(file):
                    copy.write(content)

    def _chunks(self, file: ModelFile) -> Iterator[bytes]:
        asked: deque[Any] = deque()
        offset = 0
        size, at_once = LARGE if min(self._ask(file, self.source.answer.remote()), free_memory()) >= ROOM_BYTES else SMALL
        while offset < file.size or asked:
            while offset < file.size and len(asked) < at_once:
                asked.append(self.source.read.remote(self.path / file.name, offset, size))
                offset += size
            yield self._ask(file, asked.popleft())

    def _ask(self, file: ModelFile, answer: Any) -> Any:
        return ask_blocking(
            answer,
            of=f"{file.name} of the model, from the driver's node",
            by="a process on another node",
            seconds=ANSWER_S,
            remedy="that node or the network to it may be overloaded; launch again, or put the model on all nodes",
        )

    def _digest(self) -> str:
        return hashlib.sha256(repr((self.path, self.files)).encode()).hexdigest()[:16]


@contextmanager
def _lock_file(path: Path) -> Iterator[int]:
    """Open a lock file; what was locked through it is free again afterwards."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield lock
    finally:
        os.close(lock)
