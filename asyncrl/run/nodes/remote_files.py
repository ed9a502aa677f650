"""Brings logs and kept episodes to the run folder from nodes that do not see it, because it is on no shared file system.

The run's processes on such a node write to a folder of the same name there. What always holds: what they write is in the run
folder a few seconds later, so that little is missing if their node dies, and however slow other nodes are; the file of kept
episodes is moved whole or not at all.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

from asyncrl.core.errors import AsyncRLError, NodeLost, ProcessDied, ProcessUnreachable
from asyncrl.core.files.file_errors import naming
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.folder.whole_file import write_whole
from asyncrl.run.host.ray_calls import ask
from asyncrl.run.nodes.model_folder import ModelFolder
from asyncrl.run.nodes.node_files import FileEntry, start_node_files

logger = logging.getLogger(__name__)


LOOK_S = 2.0
"""Seconds between two looks for new lines of logs. No event tells that a file on another node has grown."""
START_S, ANSWER_S = 180.0, 10.0
"""How long the process that reads a node's files may take to come up, and to answer a call, in seconds."""
CHUNK_BYTES = 4 << 20
"""The most bytes that are asked for at once."""


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
        self._logs: dict[str, _LogCopy] = {}
        self._problem = ""
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
                    await self._bring_logs()
                    await self._bring_episodes()
                self._problem = ""
        except (AsyncRLError, OSError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                logger.warning("logs and episodes of node %s are not brought at present: %s", self.id[:8], error)

    async def leave(self, model: ModelFolder | None) -> None:
        """Bring the last lines, and remove what the run has left on the node, and the node's copy of ``model``."""
        await self.bring()
        written = [] if self._sees is not False else [self._folder.logs, self._folder.trajectories]
        await self.forget(self._folder.run_id, written, model)

    async def sees(self) -> bool:
        """Whether the node sees the run folder."""
        if self._sees is None:
            self._sees = bool(await self._ask(self._files.sees.remote(self._folder.recipe), START_S))
        return self._sees

    async def _bring_logs(self) -> None:
        for entry in await self._listing(self._folder.logs):
            copy = self._logs.get(entry.name)
            if copy is None:
                copy = self._logs[entry.name] = _LogCopy(self._folder.logs / entry.name)
            if entry.size < copy.copied:
                copy.begin_again()
            while copy.copied < entry.size:
                content = await self._read(copy.path, copy.copied, min(CHUNK_BYTES, entry.size - copy.copied))
                if not content:
                    break
                copy.append(content)

    async def _bring_episodes(self) -> None:
        for entry in await self._listing(self._folder.trajectories):
            path, parts, size = self._folder.trajectories / entry.name, list[bytes](), 0
            while size < entry.size:
                content = await self._read(path, size, min(CHUNK_BYTES, entry.size - size))
                if not content:
                    break
                parts.append(content)
                size += len(content)
            path.parent.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(write_whole, path, b"".join(parts))
            await self._ask(self._files.remove.remote([path]))

    async def forget(self, run_id: str, folders: Sequence[Path], model: ModelFolder | None = None) -> None:
        """Remove what a run has left on the node. A node that does not answer is logged."""
        try:
            await self._ask(self._files.forget_run.remote(run_id, folders, model))
        except AsyncRLError as error:
            logger.warning("node %s may keep files of the run: %s", self.id[:8], error)

    async def _listing(self, folder: Path) -> list[FileEntry]:
        found: list[FileEntry] = await self._ask(self._files.listing.remote(folder))
        return found

    async def _read(self, path: Path, offset: int, limit: int) -> bytes:
        content: bytes = await self._ask(self._files.read.remote(path, offset, limit))
        return content

    async def _ask(self, answer: Any, seconds: float = ANSWER_S) -> Any:
        of, remedy = f"the files of node {self.id[:8]}", "its node or the network to it may be gone"
        return await ask(answer, of=of, by="the driver", seconds=seconds, remedy=remedy)


class _LogCopy:
    """The copy of one log: what its process has written since the run was launched or resumed, after what was there before."""

    def __init__(self, path: Path) -> None:
        self.path, self.copied = path, 0
        self._begin = path.stat().st_size if path.exists() else 0

    def append(self, content: bytes) -> None:
        """Add what comes next."""
        with naming(self.path), self.path.open("ab") as log:
            log.write(content)
        self.copied += len(content)

    def begin_again(self) -> None:
        """Forget the copy: the log's middle was cut out, because it had become too long."""
        with self.path.open("ab") as log:
            log.truncate(self._begin)
        self.copied = 0
