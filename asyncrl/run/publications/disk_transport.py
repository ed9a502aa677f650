"""The ``disk`` transport: brings publications to the engines through a versioned folder on a file system that all nodes share.

What always holds: every version is stored once, by the nodes that the ranks wrote on; a node fetches it once, however many
engines it has, and only after it is whole in the folder. Engines beside all ranks map what these wrote in memory. The work of a
mirror that dies is done by its successor, once.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec

from asyncrl.core.errors import WeightsOutOfReach
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.weights import DiskWeightsConfig
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.shared_work import SharedWork
from asyncrl.run.publications.mirrored_transport import ANSWER_S, VERSIONS, MirroredTransport, mirrors_of, twice_if_it_dies
from asyncrl.run.publications.transport import MIRRORED, Routes
from asyncrl.weights.disk.stored_versions import StoredFile

SEEN_S = 10.0
"""How long a node may take to see a version that another node has stored."""


class DiskTransport(MirroredTransport):
    """Has the mirrors of the ranks' nodes store each version, and those of other nodes fetch it."""

    def __init__(self, make: Callable[[str, Path], Any], logs: Path, seconds: float) -> None:
        super().__init__(make, logs, seconds)
        self._stored: PolicyVersion | None = None
        self._storing = SharedWork[PolicyVersion, None]()

    @classmethod
    def for_run(cls, recipe: Recipe, folder: RunFolder) -> Self:
        """Make the transport, but no mirror yet."""
        from asyncrl.weights.disk.disk_mirror import DiskMirror

        weights = recipe.weights
        assert isinstance(weights, DiskWeightsConfig)
        make = mirrors_of(folder, DiskMirror, _stored_in(weights, folder.path), weights.delta)
        return cls(make, folder.logs, recipe.deadlines.publish)

    @classmethod
    def describe(cls, routes: Routes) -> str:
        """Say which engines are reached through memory, and through which folder others are."""
        weights, far = routes.recipe.weights, sum(routes.far.values())
        assert isinstance(weights, DiskWeightsConfig)
        how = ", as changed blocks where that is less" if weights.delta else ""
        others = f"to {routes.counted(far)} elsewhere" if far else "for engines that come elsewhere"
        through = f"disk {others}, through {_stored_in(weights, routes.folder)}{how}, since the recipe asks for it"
        return "; ".join([*routes.through_memory, through])

    @classmethod
    def memory_apart(cls, version: int, store: int) -> int:
        """Two versions in files."""
        return MIRRORED * version

    async def _fetch(self, publication: Publication, node: str) -> Publication:
        return await twice_if_it_dies(partial(self._fetch_once, publication, node))

    async def _fetch_once(self, publication: Publication, node: str) -> Publication:
        """Bring ``publication`` to a node, once it is stored. It is stored in any case."""
        version = publication.version
        self._storing.forget(lambda stored: stored <= version - VERSIONS)
        await self._storing.result(version, lambda: self._store(publication), f"version {version} to disk")
        if all(file.node == node for file in publication.files):
            return publication
        files = await self._ask(node, f"fetch version {version}", self._seconds, "fetch_version", version, SEEN_S)
        return msgspec.structs.replace(publication, files=files)

    async def _store(self, publication: Publication) -> None:
        version, nodes = publication.version, sorted({file.node for file in publication.files})
        what = f"store version {version}"
        storing = [self._ask(node, what, self._seconds, "store", publication) for node in nodes]
        parts: list[dict[int, StoredFile]] = await asyncio.gather(*storing)
        stored = {number: file for part in parts for number, file in part.items()}
        files = [stored[number] for number in range(len(publication.files))]
        read = {each for each, _ in self._fetching.under_way}
        what = f"complete version {version}"
        await self._ask(nodes[0], what, ANSWER_S, "complete", version, publication.fingerprint, files, read)
        self._stored = version

    async def check_reach(self, newest: Publication, node: str) -> None:
        """Check that the node sees the newest version that was stored."""
        stored = self._stored
        if stored is None or all(file.node == node for file in newest.files):
            return
        unseen = await self._ask(node, f"look for version {stored}", SEEN_S + ANSWER_S, "unseen", stored, SEEN_S)
        if unseen is not None:
            raise WeightsOutOfReach(
                f"node {node[:8]} does not see {unseen}, through which new weights go (weights.kind=disk); to use that node, "
                "mount the folder there and start Ray on it again"
            )

    async def close(self, seconds: float) -> None:
        """End what is under way, and have all mirrors remove their files in memory."""
        self._storing.cancel()
        await super().close(seconds)


def _stored_in(weights: DiskWeightsConfig, folder: Path) -> Path:
    """The versioned folder of a run."""
    return folder / "weights" if weights.folder is None else Path(weights.folder).absolute()
