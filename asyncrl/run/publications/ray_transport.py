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
from asyncrl.run.publications.node_mirrors import ANSWER_S, NodeMirrors, PiecesLost, on_node, twice_if_it_dies
from asyncrl.run.publications.transport import IN_STORE, MIRRORED, ObjectStore, PublicationTransport, Routes, read_stores
from asyncrl.weights.shm.memory_file import MemoryFull

if TYPE_CHECKING:
    import numpy as np
    import ray

    Pieces = dict[int, list[ray.ObjectRef[np.ndarray]]]

FILLED = 0.8
"""Ray begins to move objects to the disk when its store is filled to this share."""
_VERSIONS = 4
"""Transfers of as many versions are known at once; older ones are over, because their files were overwritten."""
_SIDE_BY_SIDE = 8
"""Calls that a mirror works on at once: two versions may arrive while others are asked for."""


class _Transfers:
    """The transfers of one version.

    Attributes:
        to_node: the transfer to each node.
        put: the pieces that lie in the store of each node that ranks wrote on, while a transfer is under way.
        under_way: how many transfers are.
    """

    def __init__(self) -> None:
        self.to_node = SharedWork[str, Publication]()
        self.put = SharedWork[str, "Pieces"]()
        self.under_way = 0


class RayTransport(PublicationTransport):
    """Has mirrors put into the object store what was written on their nodes, and fetch what was not.

    Args:
        make: makes the actor of the mirror of a node, given Ray's id of it and the file for its log.
        logs: the folder of the logs.
        seconds: how long a publication may be on its way to a node (``deadlines.publish``).
        stores: returns the object store of each node.
    """

    def __init__(
        self, make: Callable[[str, Path], Any], logs: Path, seconds: float, stores: Callable[[], Mapping[str, ObjectStore]]
    ) -> None:
        self._mirrors, self._seconds, self._stores = NodeMirrors(make, logs), seconds, stores
        self._versions: dict[PolicyVersion, _Transfers] = {}
        self._over = asyncio.Event()

    @classmethod
    def for_run(cls, recipe: Recipe, folder: RunFolder) -> Self:
        """Make the transport, but no mirror yet."""

        def make(node: str, log: Path) -> Any:
            from asyncrl.run.publications.ray_mirror_actor import RemoteRayMirror

            return on_node(RemoteRayMirror, node, _SIDE_BY_SIDE).remote(folder.run_id, folder.run_id_before, log)

        return cls(make, folder.logs, recipe.deadlines.publish, read_stores)

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

    async def fetch_to_node(self, publication: Publication, node: str) -> Publication:
        """Bring ``publication`` to a node, each of its files from the store of the node that it was written on."""
        if all(file.node == node for file in publication.files):
            return publication
        transfers = self._versions.setdefault(publication.version, _Transfers())
        for version in sorted(self._versions)[:-_VERSIONS]:
            if not self._versions[version].under_way:
                del self._versions[version]
        name = f"version {publication.version} to node {node[:8]}"
        return await transfers.to_node.result(node, lambda: self._transfer(publication, node, transfers), name)

    async def _transfer(self, publication: Publication, node: str, transfers: _Transfers) -> Publication:
        await self._wait_for_room(publication.version, transfers)
        transfers.under_way += 1
        try:
            files = await twice_if_it_dies(lambda: self._transfer_once(publication, node, transfers))
        finally:
            transfers.under_way -= 1
            if not transfers.under_way:
                transfers.put = SharedWork()
                self._over.set()
        return msgspec.structs.replace(publication, files=files)

    async def _wait_for_room(self, version: PolicyVersion, transfers: _Transfers) -> None:
        """Wait until there are at most :data:`IN_STORE` versions in the store with this one."""

        def others() -> list[PolicyVersion]:
            return [other for other, each in self._versions.items() if each.under_way and each is not transfers]

        remedy = "see their logs; lower deadlines.publish to have them replaced sooner"
        owner = f"nodes that still fetch versions {', '.join(map(str, others()))}"
        async with deadline(self._seconds + 2 * ANSWER_S, waiter=f"version {version} of the weights", owner=owner, remedy=remedy):
            while not transfers.under_way and len(others()) >= IN_STORE:
                self._over.clear()
                await self._over.wait()

    async def _transfer_once(self, publication: Publication, node: str, transfers: _Transfers) -> tuple[WeightFile, ...]:
        version, files = publication.version, publication.files
        writers = sorted({file.node for file in files} - {node})
        put = await asyncio.gather(*(self._pieces(publication, writer, transfers) for writer in writers))
        pieces = {number: refs for each in put for number, refs in each.items()}
        # Longer than the deadline that the mirror keeps itself, because its error says more.
        seconds = self._seconds + ANSWER_S
        try:
            fetched: tuple[WeightFile, ...] = await self._mirrors.on(node).ask(
                lambda actor: actor.fetch_files.remote(version, files, pieces, self._seconds), f"fetch version {version}", seconds
            )
        except PiecesLost as lost:
            transfers.put = SharedWork()
            raise ProcessDied(str(lost)) from lost
        finally:
            put.clear()  # whoever keeps the error keeps this frame, and would keep the pieces in the store
            pieces.clear()
        return fetched

    async def _pieces(self, publication: Publication, node: str, transfers: _Transfers) -> "Pieces":
        """Have the mirror of a node that ranks wrote on put the version there, once for all transfers; return its pieces."""
        name = f"version {publication.version} put by node {node[:8]}"
        return await transfers.put.result(node, lambda: twice_if_it_dies(lambda: self._put(publication, node)), name)

    async def _put(self, publication: Publication, node: str) -> "Pieces":
        version, files = publication.version, publication.files
        what = f"put version {version} into Ray's object store"
        try:
            pieces: Pieces = await self._mirrors.on(node).ask(lambda actor: actor.put.remote(version, files), what, self._seconds)
        except MemoryFull as full:  # not on the node that waits for it: that could do nothing about it
            raise ComponentFailed(str(full)) from full
        return pieces

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

    async def leave(self, node: str) -> None:
        """End the mirror of a node on which no engine is left, whose files go with it."""
        for transfers in self._versions.values():
            transfers.to_node.forget(lambda key: key == node)
        await self._mirrors.leave(node)

    async def close(self, seconds: float) -> None:
        """End the transfers, and have all mirrors remove their files."""
        for transfers in self._versions.values():
            transfers.to_node.cancel()
            transfers.put.cancel()
        await self._mirrors.close(seconds)


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
