"""The files of one node, for processes on other nodes, and the Ray actor that gives them."""

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from asyncrl.core.files.memory_files import memory_file_system
from asyncrl.run.folder.run_memory import free_memory_of, sweep_memory
from asyncrl.run.host.ray_calls import this_node
from asyncrl.run.models.model_identity import model_files
from asyncrl.run.nodes.model_folder import ModelFolder

_CALLS_AT_ONCE = 8


class FileEntry(msgspec.Struct, frozen=True):
    """A file of a folder: its path within the folder, and its size in bytes."""

    name: str
    size: int


class NodeFiles:
    """Lists, reads and removes files of its node."""

    def answer(self) -> int:
        """Return how many bytes are free in the memory file system; who asks mostly wants to know that this node answers."""
        memory = os.statvfs(memory_file_system())
        return memory.f_bavail * memory.f_frsize

    def sees(self, path: Path) -> bool:
        """Return whether there is such a file or folder on this node."""
        return path.exists()

    def listing(self, folder: Path) -> list[FileEntry]:
        """Return all files in ``folder`` and its folders, sorted by name; none if there is no such folder.

        Drafts of files, whose names begin with a dot, are left out.
        """
        return entries(folder)

    def read(self, file: Path, offset: int, limit: int) -> bytes:
        """Return up to ``limit`` bytes of ``file`` from ``offset``, in bytes.

        Raises:
            OSError: it cannot be read.
        """
        with file.open("rb") as content:
            content.seek(offset)
            return content.read(limit)

    def remove(self, files: Sequence[Path]) -> None:
        """Remove files, those that are still there."""
        for file in files:
            file.unlink(missing_ok=True)

    def forget_run(self, run_id: str, folders: Sequence[Path], model: ModelFolder | None = None) -> None:
        """Remove what a run has left on this node.

        Args:
            run_id: the run whose files in memory are removed.
            folders: where its processes wrote if they saw no run folder.
            model: a model whose copy on this node nobody needs after the run.
        """
        free_memory_of(run_id)
        if model is not None:
            model.remove_copy()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # there is more in it
                folder.parent.rmdir()


def entries(folder: Path) -> list[FileEntry]:
    """Return all files in ``folder`` and its folders, sorted by name, without drafts; none if there is no such folder."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            found.append(FileEntry(str(name), path.stat().st_size))
    return found


class NodeFilesActor(NodeFiles):
    """The files of the node that Ray started it on, from whose memory it first removes what killed runs have left."""

    def __init__(self) -> None:
        sweep_memory()


RemoteNodeFiles = ray.remote(NodeFilesActor)


def start_node_files(node: str) -> Any:
    """Start an actor of :class:`NodeFiles` on the node with this id of Ray, and return its handle."""
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    return RemoteNodeFiles.options(num_cpus=0, max_concurrency=_CALLS_AT_ONCE, scheduling_strategy=where).remote()


def model_for_all_nodes(path: Path) -> ModelFolder:
    """Return what finds the model in ``path``, a folder of the driver's node, on every node of the cluster it has joined."""
    if not os.environ.get("RAY_ADDRESS"):
        return ModelFolder(path, (), None)
    return ModelFolder(path, model_files(path), start_node_files(this_node()))
