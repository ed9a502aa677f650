"""Brings publications to the engines through a versioned folder on a file system that all nodes share.

What always holds: every version is stored once, by the nodes that the ranks wrote on; a node fetches it once, however many
engines it has, and only after it is whole in the folder. Engines beside all ranks map what these wrote in memory. The work of a
mirror that dies is done by its successor, once.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from asyncrl.core.errors import AsyncRLError, ProcessDied, WeightsOutOfReach
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.ray_calls import ANSWER_DEADLINE_S, ask
from asyncrl.run.host.shared_work import SharedWork
from asyncrl.run.publications.disk_mirror_actor import RemoteDiskMirror

T = TypeVar("T")

SIDE_BY_SIDE = 4
"""Calls that a mirror works on at once: it may store one version and fetch another."""
SEEN_S = 10.0
"""How long a node may take to see a version that another node has stored."""
_VERSIONS = 4
"""Transfers of as many versions are known at once."""


class DiskPublications:
    """Implements :class:`asyncrl.run.publications.mirrors.LocalPublications`.

    Args:
        make: makes the actor of the mirror of a node, given Ray's id of it.
        seconds: how long storing or fetching a version may take (``deadlines.publish``).
    """

    def __init__(self, make: Callable[[str], Any], seconds: float) -> None:
        self._make, self._seconds = make, seconds
        self._stored: PolicyVersion | None = None
        self._mirrors: dict[str, Any] = {}
        self._storing = SharedWork[PolicyVersion, None]()
        self._fetching = SharedWork[tuple[PolicyVersion, str], Publication]()

    async def fetch(self, publication: Publication, node: str) -> Publication:
        """See :meth:`asyncrl.run.publications.mirrors.LocalPublications.fetch`."""
        oldest, version = publication.version - _VERSIONS + 1, publication.version
        self._fetching.forget(lambda key: key[0] < oldest)
        self._storing.forget(lambda stored: stored < oldest)
        name = f"version {version} to node {node[:8]}"
        return await self._fetching.result((version, node), lambda: self._fetch(publication, node), name)

    async def _fetch(self, publication: Publication, node: str) -> Publication:
        try:
            return await self._fetched(publication, node)
        except ProcessDied:  # of a mirror; if its whole node is gone, its successor does not come up either
            return await self._fetched(publication, node)

    async def _fetched(self, publication: Publication, node: str) -> Publication:
        version = publication.version
        await self._storing.result(version, lambda: self._store(publication), f"version {version} to disk")
        if all(file.node == node for file in publication.files):
            return publication
        what = f"fetch version {version}"
        files = await self._ask(node, lambda mirror: mirror.fetch.remote(version, SEEN_S), what, self._seconds)
        return msgspec.structs.replace(publication, files=files)

    async def _store(self, publication: Publication) -> None:
        version, nodes = publication.version, sorted({file.node for file in publication.files})
        what = f"store version {version}"
        storing = [self._ask(node, lambda mirror: mirror.store.remote(publication), what, self._seconds) for node in nodes]
        parts = await asyncio.gather(*storing)
        stored = {number: file for part in parts for number, file in part.items()}
        files = [stored[number] for number in range(len(publication.files))]
        read = {each for each, _ in self._fetching.under_way}
        proof, what = publication.fingerprint, f"complete version {version}"
        await self._ask(nodes[0], lambda mirror: mirror.complete.remote(version, proof, files, read), what, ANSWER_DEADLINE_S)
        self._stored = version

    async def check_reach(self, newest: Publication, node: str) -> None:
        """See :meth:`asyncrl.run.publications.mirrors.LocalPublications.check_reach`."""
        stored = self._stored
        if stored is None or all(file.node == node for file in newest.files):
            return
        what, seconds = f"look for version {stored}", SEEN_S + ANSWER_DEADLINE_S
        unseen = await self._ask(node, lambda mirror: mirror.unseen.remote(stored, SEEN_S), what, seconds)
        if unseen is not None:
            raise WeightsOutOfReach(
                f"node {node[:8]} does not see {unseen}, through which new weights go (weights.kind=disk); to use that node, "
                "mount the folder there and start Ray on it again"
            )

    async def _ask(self, node: str, call: "Callable[[Any], ray.ObjectRef[T]]", what: str, seconds: float) -> T:
        """Call the mirror of a node. If it dies, the next call makes a successor, which stores and fetches whole files first."""
        if node not in self._mirrors:
            self._mirrors[node] = self._make(node)
        mirror = self._mirrors[node]
        of, remedy = f"the mirror of weights on node {node[:8]} to {what}", "see its log; raise deadlines.publish"
        try:
            return await ask(call(mirror), of=of, by="the driver", seconds=seconds, remedy=remedy)
        except ProcessDied:
            if self._mirrors.get(node) is mirror:  # not its successor, which another call may have had made
                del self._mirrors[node]
            raise

    async def close(self, seconds: float) -> None:
        """End what is under way, and have all mirrors remove their files in memory."""
        self._fetching.cancel()
        self._storing.cancel()
        closing = [self._ask(node, lambda mirror: mirror.close.remote(), "close", seconds) for node in self._mirrors]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, AsyncRLError):
                raise outcome


def make_disk_mirror(node: str, folder: RunFolder, weights: Path, delta: bool) -> Any:
    """Make the actor of the mirror of ``node``, given as Ray's id, which stores in the folder ``weights``."""
    where, log = NodeAffinitySchedulingStrategy(node, soft=False), folder.logs / f"mirror-{node[:8]}.log"
    return RemoteDiskMirror.options(num_cpus=0, max_concurrency=SIDE_BY_SIDE, scheduling_strategy=where).remote(
        folder.run_id, folder.run_id_before, weights, delta, log
    )
