"""One shard of the trajectories, on the node that made them: it frees what nobody needs, and serves those on other nodes."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import ray

from asyncrl.core.payload import PayloadRef
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.actors.output import route_output
from asyncrl.run.payload import open_writer
from buffers.payload import PayloadReader, PayloadStore


class ShardFiles:
    """The files of shard ``shard`` in ``folder``. A worker on the same node writes and a rank on it reads them without asking."""

    def __init__(self, recipe: Recipe, shard: int, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.store = PayloadStore(folder)
        self._reader = PayloadReader(folder)
        self._writer = open_writer(recipe.buffer, shard, folder, "elsewhere")

    def fetch(self, refs: Sequence[PayloadRef]) -> list[bytes]:
        """The bytes of ``refs``.

        Raises:
            PayloadLost: some are not what was written.
        """
        return self._reader.read(refs)

    def append(self, payloads: Sequence[bytes]) -> list[PayloadRef]:
        """Keep what a worker made on a node without a shard.

        Raises:
            DiskFull: nothing was kept.
        """
        return self._writer.append(payloads)


class PayloadShardActor:
    """:class:`ShardFiles` on a node of its own choice; each call in a thread."""

    def __init__(self, recipe: Recipe, shard: int, folder: Path, log_file: Path) -> None:
        route_output(log_file)
        self._files = ShardFiles(recipe, shard, folder)
        self._appending = asyncio.Lock()

    async def fetch(self, refs: Sequence[PayloadRef]) -> list[bytes]:
        """See :meth:`ShardFiles.fetch`."""
        return await asyncio.to_thread(self._files.fetch, refs)

    async def append(self, payloads: Sequence[bytes]) -> list[PayloadRef]:
        """See :meth:`ShardFiles.append`."""
        async with self._appending:
            return await asyncio.to_thread(self._files.append, payloads)

    async def free(self, refs: Sequence[PayloadRef]) -> None:
        """Give up payload that nobody needs any more."""
        await asyncio.to_thread(self._files.store.free, refs)

    async def verify(self, refs: Sequence[PayloadRef]) -> list[PayloadRef]:
        """Those of ``refs`` whose bytes are not what was written."""
        return await asyncio.to_thread(self._files.store.verify, refs)

    async def sweep(self, live: Sequence[PayloadRef]) -> None:
        """Remove what none of ``live`` refers to."""
        await asyncio.to_thread(self._files.store.sweep, live)


RemotePayloadShard = ray.remote(PayloadShardActor)
