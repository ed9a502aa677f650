"""Brings logs and kept episodes to the run folder from nodes that do not see it, because it is on no shared file system.

The run's processes on such a node write to a folder of the same name there. What always holds: what they write is in the run
folder a few seconds later, so that little is missing if their node dies, and however slow other nodes are; the file of kept
episodes is moved whole or not at all.
"""

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from asyncrl.core.errors import AsyncRLError, NodeLost, ProcessDied, ProcessUnreachable
from asyncrl.core.files.file_errors import naming
from asyncrl.core.files.memory_files import free_memory
from asyncrl.core.files.whole_file import write_whole
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.folder.run_memory import free_memory_of, sweep_memory
from asyncrl.run.host.ray_calls import INLINE_BYTES, ask, this_node
from asyncrl.run.models.model_identity import files_below, model_files
from asyncrl.run.nodes.model_folder import LARGE, ROOM_BYTES, ModelFolder

_CALLS_AT_ONCE = 8
logger = logging.getLogger(__name__)
LOOK_S = 2.0
"""Seconds between two looks for new lines of logs. No event tells that a file on another node has grown."""
START_S, ANSWER_S = 180.0, 10.0
"""How long the process that reads a node's files may take to come up, and to answer a call, in seconds."""


class NodeFiles:
    """Lists, reads and removes files of its node."""

    def answer(self) -> int:
        """Return how many bytes are free in the memory file system; who asks mostly wants to know that this node answers."""
        return free_memory()

    def sees(self, path: Path) -> bool:
        """Return whether there is such a file or folder on this node."""
        return path.exists()

    def sizes(self, folder: Path) -> dict[str, int]:
        """Return the bytes of all files in ``folder`` and its folders, by their path in it; none if there is no such folder.

        Drafts of files, whose names begin with a dot, are left out.
        """
        return {name: path.stat().st_size for name, path in files_below(folder)}

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

    def forget_run(self, run_id: str | None, folders: Sequence[Path], model: ModelFolder | None = None) -> None:
        """Remove what a run has left on this node.

        Args:
            run_id: the run whose files in memory are removed; None if they stay.
            folders: where its processes wrote if they saw no run folder.
            model: a model whose copy on this node nobody needs after the run.
        """
        if run_id is not None:
            free_memory_of(run_id)
        if model is not None:
            model.remove_copy()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # there is more in it
                folder.parent.rmdir()


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


class FarFiles:
    """Brings the files of one run.

    Args:
        folder: the run folder, on this node.
        nodes: returns the ids of the other nodes on which the run has processes now.
        model: a model whose copies on other nodes go with the run; other models stay in the nodes' caches.
    """

    def __init__(self, folder: RunFolder, nodes: Callable[[], Collection[str]], model: ModelFolder | None = None) -> None:
        self._folder, self._nodes, self._model = folder, nodes, model
        self._known: dict[str, _FarNode] = {}

    @property
    def met(self) -> set[str]:
        """The nodes on which the run has processes now, and whose files could be read at least once."""
        return {node for node in self._nodes() if node in self._known and self._known[node].met}

    @property
    def unused(self) -> set[str]:
        """The nodes on which the run has no process any more but the one that reads its files."""
        return self._known.keys() - set(self._nodes())

    async def leave(self, node: str) -> None:
        """Bring the last lines of a node that is unused, remove the run's files there, and end the process that did so.

        What is in memory there went with those who had it: another node of the cluster may be on the same machine.
        """
        await self._known[node].leave(self._model, in_memory=False)
        self._known.pop(node).end()

    async def answer(self, node: str) -> int:
        """Ask a node that was met for the bytes that are free in its memory file system. Raises what :func:`ask` raises."""
        return await self._known[node].answer()

    async def run(self) -> NoReturn:
        """Bring what is new, again and again, from each node by itself."""
        bringing: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                for node in self._present():
                    if node.id not in bringing or bringing[node.id].done():
                        bringing[node.id] = group.create_task(node.bring(), name=f"bringing the files of node {node.id[:8]}")
                await asyncio.sleep(LOOK_S)

    async def bring(self) -> None:
        """Bring all that is new. A node that does not answer is logged, and asked again the next time."""
        await asyncio.gather(*(node.bring() for node in self._present()))

    async def blind(self) -> set[str]:
        """Return the nodes that do not see the run folder.

        Raises:
            AsyncRLError: a node does not answer.
        """
        self._meet()
        seeing = await asyncio.gather(*(node.sees() for node in self._known.values()))
        return {node for node, sees in zip(self._known, seeing, strict=True) if not sees}

    async def forget_killed(self) -> None:
        """Remove what the killed run that this one resumes has left in the memory of other nodes."""
        self._meet()
        if (killed := self._folder.run_id_before) is not None:
            await asyncio.gather(*(node.forget(killed, ()) for node in self._known.values()))

    def _present(self) -> "list[_FarNode]":
        """The nodes on which the run has processes now."""
        self._meet()
        return [self._known[node] for node in self._nodes()]

    def _meet(self) -> None:
        for node in set(self._nodes()) - self._known.keys():
            self._known[node] = _FarNode(node, self._folder)

    async def close(self, seconds: float) -> None:
        """Bring the last lines within ``seconds``, and remove what the run left on other nodes, even if it has no process there
        any more."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(node.leave(self._model) for node in self._known.values()))
        except TimeoutError:
            logger.warning("the last lines of other nodes' logs may be missing: they did not come within %g s", seconds)


class _FarNode:
    """One other node: what it has that the run folder has not."""

    def __init__(self, node: str, folder: RunFolder) -> None:
        self.id, self._folder = node, folder
        self._files: Any = start_node_files(node)
        self._sees: bool | None = None
        self._logs: dict[str, tuple[int, int]] = {}  # where the copy of each begins here, and its bytes
        self._problem = ""
        self._piece = INLINE_BYTES
        self._bringing = asyncio.Lock()

    @property
    def met(self) -> bool:
        """Whether the node has answered once."""
        return self._sees is not None

    async def answer(self) -> int:
        """Ask the node for the bytes that are free in its memory file system.

        If the process that reads its files has died, start another.
        """
        try:
            return int(await self._ask(self._files.answer.remote()))
        except (ProcessUnreachable, NodeLost):
            raise
        except ProcessDied:
            self._files = start_node_files(self.id)
            return int(await self._ask(self._files.answer.remote()))

    async def bring(self) -> None:
        """Bring what is new. What goes wrong is logged once."""
        try:
            async with self._bringing:
                if not await self.sees():
                    room = min(await self.answer(), free_memory())
                    self._piece = LARGE[0] if room >= ROOM_BYTES else INLINE_BYTES
                    await self._bring_logs()
                    await self._bring_episodes()
                self._problem = ""
        except (AsyncRLError, OSError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                logger.warning("logs and episodes of node %s are not brought at present: %s", self.id[:8], error)

    async def leave(self, model: ModelFolder | None, *, in_memory: bool = True) -> None:
        """Bring the last lines, and remove what the run has left on the node, and the node's copy of ``model``."""
        await self.bring()
        written = [] if self._sees is not False else [self._folder.logs, self._folder.trajectories]
        await self.forget(self._folder.run_id if in_memory else None, written, model)

    def end(self) -> None:
        """End the process that reads the node's files."""
        ray.kill(self._files)

    async def sees(self) -> bool:
        """Whether the node sees the run folder."""
        if self._sees is None:
            self._sees = bool(await self._ask(self._files.sees.remote(self._folder.recipe), START_S))
        return self._sees

    async def _bring_logs(self) -> None:
        for name, size in (await self._ask(self._files.sizes.remote(self._folder.logs))).items():
            log = self._folder.logs / name
            begin, copied = self._logs.get(name) or (log.stat().st_size if log.exists() else 0, 0)
            if size < copied:  # its middle was cut out, because it had become too long
                os.truncate(log, begin)
                copied = 0
            self._logs[name] = begin, copied
            async for content in self._content(log, copied, size):
                with naming(log), log.open("ab") as copy:
                    copy.write(content)
                copied += len(content)
                self._logs[name] = begin, copied

    async def _bring_episodes(self) -> None:
        for name, size in (await self._ask(self._files.sizes.remote(self._folder.trajectories))).items():
            path = self._folder.trajectories / name
            content = b"".join([part async for part in self._content(path, 0, size)])
            path.parent.mkdir(exist_ok=True)
            await asyncio.to_thread(write_whole, path, content)
            await self._ask(self._files.remove.remote([path]))

    async def _content(self, path: Path, begin: int, end: int) -> AsyncIterator[bytes]:
        """Yield what a file has between two places, in pieces."""
        while begin < end:
            content: bytes = await self._ask(self._files.read.remote(path, begin, min(self._piece, end - begin)))
            if not content:
                break
            yield content
            begin += len(content)

    async def forget(self, run_id: str | None, folders: Sequence[Path], model: ModelFolder | None = None) -> None:
        """Remove what a run has left on the node. A node that does not answer is logged."""
        try:
            await self._ask(self._files.forget_run.remote(run_id, folders, model))
        except AsyncRLError as error:
            logger.warning("node %s may keep files of the run: %s", self.id[:8], error)

    async def _ask(self, answer: Any, seconds: float = ANSWER_S) -> Any:
        of, remedy = f"the files of node {self.id[:8]}", "its node or the network to it may be gone"
        return await ask(answer, of=of, by="the driver", seconds=seconds, remedy=remedy)
