"""The ``ray`` transport: brings publications to the nodes of the engines through Ray's object store, one mirror on each node.

What always holds: each byte of a publication goes to a node once, however many engines it has; pieces are in the store while a
node fetches them, and of two versions at most; a mirror that died is replaced when it is next needed.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from asyncrl.core.deadline import deadline
from asyncrl.core.errors import ComponentFailed, ProcessDied, RecipeError, WeightsOutOfReach
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.measures.units import memory
from asyncrl.core.publication import Publication, WeightFile
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.shared_work import SharedWork
from asyncrl.run.publications.mirrored_transport import (
    ANSWER_S,
    MirroredTransport,
    PiecesLost,
    mirrors_of,
    twice_if_it_dies,
)
from asyncrl.run.publications.transport import IN_STORE, MIRRORED, ObjectStore, Routes, read_stores
from asyncrl.weights.shm.memory_file import MemoryFull

if TYPE_CHECKING:
    import numpy as np
    import ray

    Pieces = dict[int, list[ray.ObjectRef[np.ndarray]]]

FILLED = 0.8
"""Ray begins to move objects to the disk when its store is filled to this share."""


class RayTransport(MirroredTransport):
    """Has mirrors put into the object store what was written on their nodes, and fetch what was not.

    Args:
        stores: returns the object store of each node.
    """

    def __init__(
        self, make: Callable[[str, Path], Any], logs: Path, seconds: float, stores: Callable[[], Mapping[str, ObjectStore]]
    ) -> None:
        super().__init__(make, logs, seconds)
        self._stores = stores
        self._under_way = Counter[PolicyVersion]()
        """How many transfers of each version there are. What they need lies in the store meanwhile."""
        self._put = SharedWork[tuple[PolicyVersion, str], "Pieces"]()
        self._over = asyncio.Event()

    @classmethod
    def for_run(cls, recipe: Recipe, folder: RunFolder) -> Self:
        """Make the transport, but no mirror yet."""
        from asyncrl.run.publications.ray_mirror import RayMirror

        return cls(mirrors_of(folder, RayMirror), folder.logs, recipe.deadlines.publish, read_stores)

    @classmethod
    def describe(cls, routes: Routes) -> str:
        """Say which engines are reached through memory and which through Ray's object store.

        Raises:
            RecipeError: the store of a node that ranks write on is too small.
        """
        ways, room, ranks = routes.through_memory, routes.room, routes.ranks_on.total()
        if routes.far and room is not None:
            for node, count in routes.ranks_on.items():
                if problem := too_small(room.stores.get(node), room.version * count // ranks):
                    raise RecipeError("weights.kind", *problem)
        if routes.beside:
            engines = routes.on_nodes(routes.beside)
            ways.append(
                f"shm from ranks beside them, and Ray's object store from those on other nodes, to {engines}, once to each"
            )
        if routes.apart:
            ways.append(f"Ray's object store to {routes.on_nodes(routes.apart)} where no rank writes, once to each")
        return "; ".join(ways)

    @classmethod
    def memory_apart(cls, version: int, store: int) -> int:
        """Two versions in files, and in the object store as much as there may be."""
        return MIRRORED * version + min(IN_STORE * version, store)

    async def _fetch(self, publication: Publication, node: str) -> Publication:
        """Bring ``publication`` to a node, each of its files from the store of the node that it was written on."""
        if all(file.node == node for file in publication.files):
            return publication
        version = publication.version
        await self._wait_for_room(version)
        self._under_way[version] += 1
        try:
            files = await twice_if_it_dies(lambda: self._fetch_once(publication, node))
        finally:
            self._under_way[version] -= 1
            if not self._under_way[version]:
                del self._under_way[version]
                self._let_go(version)
                self._over.set()
        return msgspec.structs.replace(publication, files=files)

    async def _wait_for_room(self, version: PolicyVersion) -> None:
        """Wait until there are at most :data:`IN_STORE` versions in the store with this one."""
        remedy = "see their logs; lower deadlines.publish to have them replaced sooner"
        owner = f"nodes that still fetch versions {', '.join(map(str, self._under_way))}"
        async with deadline(self._seconds + 2 * ANSWER_S, waiter=f"version {version} of the weights", owner=owner, remedy=remedy):
            while version not in self._under_way and len(self._under_way) >= IN_STORE:
                self._over.clear()
                await self._over.wait()

    def _let_go(self, version: PolicyVersion) -> None:
        """Let the store forget the pieces of a version."""
        self._put.forget(lambda key: key[0] == version)

    async def _fetch_once(self, publication: Publication, node: str) -> tuple[WeightFile, ...]:
        version, files = publication.version, publication.files
        writers = sorted({file.node for file in files} - {node})
        put = await asyncio.gather(*(self._pieces(publication, writer) for writer in writers))
        pieces = {number: refs for each in put for number, refs in each.items()}
        # Longer than the deadline that the mirror keeps itself, because its error says more.
        seconds = self._seconds + ANSWER_S
        try:
            arguments = version, files, pieces, self._seconds
            fetched: tuple[WeightFile, ...] = await self._ask(
                node, f"fetch version {version}", seconds, "fetch_files", *arguments
            )
        except PiecesLost as lost:
            self._let_go(version)
            raise ProcessDied(str(lost)) from lost
        finally:
            put.clear()  # whoever keeps the error keeps this frame, and would keep the pieces in the store
            pieces.clear()
        return fetched

    async def _pieces(self, publication: Publication, node: str) -> "Pieces":
        """Have the mirror of a node that ranks wrote on put the version there, once for all transfers; return its pieces."""
        version = publication.version
        what = f"put version {version} into Ray's object store"

        async def put() -> "Pieces":
            try:
                pieces: Pieces = await self._ask(node, what, self._seconds, "put", version, publication.files)
            except MemoryFull as full:  # not on the node that waits for it: that could do nothing about it
                raise ComponentFailed(str(full)) from full
            return pieces

        return await self._put.result((version, node), lambda: twice_if_it_dies(put), f"{what} of node {node[:8]}")

    async def check_reach(self, newest: Publication, node: str) -> None:
        """Check that the stores of the nodes that ranks write on are large enough, if the node needs anything of them."""
        written = Counter[str]()
        for file in newest.files:
            written[file.node] += file.size
        if set(written) == {node}:
            return
        stores = self._stores()
        for writer, size in written.items():
            if problem := too_small(stores.get(writer), size):
                raise WeightsOutOfReach(f"weights do not come to node {node[:8]}: {'; '.join(problem)}")

    async def close(self, seconds: float) -> None:
        """End the transfers, and have all mirrors remove their files."""
        self._put.cancel()
        await super().close(seconds)


def too_small(store: ObjectStore | None, size: int) -> tuple[str, str] | None:
    """Return what is wrong, and the remedy, if a node's store cannot hold what may be in it at once; None if it can, or is not
    known.

    Args:
        size: bytes of a version that ranks on the node write.
    """
    needed = ceil(IN_STORE * size / FILLED)
    if store is None or needed <= store.size:
        return None
    takes = f"{IN_STORE} versions of the weights that ranks there write, at most {FILLED:.0%} of it, take {memory(needed)}"
    remedy = f"start Ray there with --object-store-memory={needed}, or set weights.kind to disk"
    return f"Ray's object store on {store.host} has {memory(store.size)}, and {takes}", remedy
