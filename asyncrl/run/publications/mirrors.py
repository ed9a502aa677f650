"""Brings publications to the nodes of the engines that are to load them, through one mirror of weights on each node concerned.

What always holds: each byte of a publication goes to a node once, however many engines it has; a node is sent to another one only
after that one has begun to fetch, so that no two wait for each other; a mirror that died is replaced when it is next needed.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from asyncrl.core.errors import AsyncRLError, ProcessDied, RecipeError, WeightsOutOfReach
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.network.tls import TlsKeys
from asyncrl.core.publication import Publication, WeightFile
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.ray_calls import ANSWER_DEADLINE_S, ask
from asyncrl.run.host.shared_work import SharedWork
from asyncrl.run.publications.mirror_actor import SIDE_BY_SIDE, RemoteMirror
from asyncrl.weights.tcp.chunk_wire import Address

T = TypeVar("T")

FAN_OUT = 2
"""How many nodes fetch from the same one: from the learner's, or from one that fetches itself. More would share its line to the
network; fewer would make the way to the last node longer."""
_VERSIONS = 4
"""Transfers of as many versions are known at once; older ones are over, because their files were overwritten."""


class LocalPublications(Protocol):
    """Makes publications readable on other nodes than those they were written on.

    What :meth:`fetch` returned stays readable on its node until a publication two fetches later begins to arrive there. The files
    of a publication may be overwritten once no call of :meth:`fetch` for it is under way.
    """

    async def fetch(self, publication: Publication, node: str) -> Publication:
        """Bring ``publication`` to a node, and return it with files that all lie there.

        Returns at once where it lies there already. Calls for one node share one transfer, which goes on if a caller is
        cancelled. Engines go on sampling meanwhile.

        Args:
            publication: as the ranks wrote it.
            node: Ray's id of the node.

        Raises:
            ComponentFailed: the node cannot be reached (``ProcessDied``), its memory file system is full, or the files are gone.
            DeadlineExceeded: they did not arrive within ``deadlines.publish``.
        """
        ...

    async def check_reach(self, newest: Publication, node: str) -> None:
        """Check that publications can come to a node on which an engine is about to start.

        Args:
            newest: the newest publication.

        Raises:
            WeightsOutOfReach: they cannot.
            ComponentFailed: the node cannot be asked.
            DeadlineExceeded: it did not answer in time.
        """
        ...

    async def close(self, seconds: float) -> None:
        """End what is under way, and remove what lies on other nodes."""
        ...


class SharedMemoryAlone:
    """Implements :class:`LocalPublications` for engines on the node that all ranks write on."""

    async def fetch(self, publication: Publication, node: str) -> Publication:
        """See :class:`LocalPublications`.

        Raises:
            RecipeError: the engine is on another node.
        """
        if any(file.node != node for file in publication.files):
            problem = f"shm does not reach an engine on node {node[:8]}, where the learner does not write"
            raise RecipeError("weights.kind", problem, "set it to auto, and resume the run")
        return publication

    async def check_reach(self, newest: Publication, node: str) -> None:
        """See :class:`LocalPublications`."""
        if any(file.node != node for file in newest.files):
            problem = f"weights.kind=shm does not reach node {node[:8]}, where the learner does not write"
            raise WeightsOutOfReach(f"{problem}; to use that node, set it to auto, and resume the run")

    async def close(self, seconds: float) -> None:
        """There is nothing to remove."""


class Broadcasts:
    """Implements :class:`LocalPublications` for engines that take publications from the ranks' GPUs themselves.

    Args:
        everywhere: so do engines that share the memory of all ranks.
    """

    def __init__(self, *, everywhere: bool) -> None:
        self._everywhere = everywhere

    async def fetch(self, publication: Publication, node: str) -> Publication:
        """See :class:`LocalPublications`. The engine fetches when it makes the publication ready, from the ranks' own files."""
        near = all(file.node == node for file in publication.files)
        return msgspec.structs.replace(publication, senders=()) if near and not self._everywhere else publication

    async def check_reach(self, newest: Publication, node: str) -> None:
        """See :class:`LocalPublications`. Whether an engine's GPU reaches those of the ranks shows when they make a group."""

    async def close(self, seconds: float) -> None:
        """There is nothing to remove."""


class MirrorOfNode(Protocol):
    """The mirror of one node, as the driver sees it; see :class:`MirrorHandle`."""

    async def address(self) -> Address:
        """Where other mirrors fetch from this one; waits until its process is up."""
        ...

    async def serve(self, version: PolicyVersion, files: Sequence[WeightFile]) -> None:
        """See :meth:`asyncrl.weights.tcp.mirror.Mirror.serve`."""
        ...

    async def fetch(
        self, version: PolicyVersion, files: Sequence[WeightFile], sources: dict[str, list[Address]], seconds: float
    ) -> tuple[WeightFile, ...]:
        """See :meth:`asyncrl.weights.tcp.mirror.Mirror.fetch`."""
        ...

    async def close(self, seconds: float) -> None:
        """Have it remove its files."""
        ...


class _Transfers:
    """The transfers of one version.

    Attributes:
        to_node: the transfer to each node.
        origins: the mirrors of the nodes that the ranks wrote on, once they hand the version out.
        joined: the mirrors that have begun to fetch it, in that order: a tree whose root is the learner's node.
    """

    def __init__(self) -> None:
        self.to_node = SharedWork[str, Publication]()
        self.origins = SharedWork[str, Address]()
        self.joined: list[Address] = []

    def join(self, address: Address) -> list[Address]:
        """Take a mirror into the tree, and return its parent; nothing if that is the learner's node itself."""
        place = len(self.joined)
        self.joined.append(address)
        return [] if place < FAN_OUT else [self.joined[place // FAN_OUT - 1]]


class Mirrors:
    """The mirrors of a run, each made when it is first needed; see :class:`LocalPublications`.

    Args:
        make: makes the mirror of a node, given Ray's id of it.
        seconds: how long a publication may be on its way to a node (``deadlines.publish``).
    """

    def __init__(self, make: Callable[[str], MirrorOfNode], seconds: float) -> None:
        self._make, self._seconds = make, seconds
        self._mirrors: dict[str, MirrorOfNode] = {}
        self._versions: dict[PolicyVersion, _Transfers] = {}

    async def fetch(self, publication: Publication, node: str) -> Publication:
        """See :class:`LocalPublications`."""
        if all(file.node == node for file in publication.files):
            return publication
        transfers = self._versions.setdefault(publication.version, _Transfers())
        for version in sorted(self._versions)[:-_VERSIONS]:
            del self._versions[version]
        name = f"version {publication.version} to node {node[:8]}"
        return await transfers.to_node.result(node, lambda: self._transfer(publication, node, transfers), name)

    async def check_reach(self, newest: Publication, node: str) -> None:
        """See :class:`LocalPublications`. The network between nodes is what Ray itself needs."""

    async def _transfer(self, publication: Publication, node: str, transfers: _Transfers) -> Publication:
        try:
            files = await self._fetched(publication, node, transfers)
        except ProcessDied:  # of the mirror; if the whole node is gone, its successor does not come up either
            files = await self._fetched(publication, node, transfers)
        return msgspec.structs.replace(publication, files=files)

    async def _fetched(self, publication: Publication, node: str, transfers: _Transfers) -> tuple[WeightFile, ...]:
        writers = sorted({file.node for file in publication.files} - {node})
        origins = await asyncio.gather(*(self._origin(publication, writer, transfers) for writer in writers))
        mirror = self._mirror(node)
        try:
            parent = transfers.join(await mirror.address())
            sources = {writer: [*parent, origin] for writer, origin in zip(writers, origins, strict=True)}
            return await mirror.fetch(publication.version, publication.files, sources, self._seconds)
        except ProcessDied:
            self._died(node, mirror)
            raise

    async def _origin(self, publication: Publication, node: str, transfers: _Transfers) -> Address:
        """Have the mirror of a node that ranks wrote on hand the version out, once for all transfers; return its address."""
        name = f"version {publication.version} handed out by node {node[:8]}"
        return await transfers.origins.result(node, lambda: self._serve(publication, node), name)

    async def _serve(self, publication: Publication, node: str) -> Address:
        mirror = self._mirror(node)
        try:
            address = await mirror.address()
            await mirror.serve(publication.version, publication.files)
            return address
        except ProcessDied:
            self._died(node, mirror)
            raise

    def _mirror(self, node: str) -> MirrorOfNode:
        if node not in self._mirrors:
            self._mirrors[node] = self._make(node)
        return self._mirrors[node]

    def _died(self, node: str, mirror: MirrorOfNode) -> None:
        if self._mirrors.get(node) is mirror:  # not its successor, which another transfer may have had made
            del self._mirrors[node]

    async def close(self, seconds: float) -> None:
        """End the transfers, and have all mirrors remove their files. One that does not answer is killed with the run."""
        for transfers in self._versions.values():
            transfers.to_node.cancel()
            transfers.origins.cancel()
        closing = [mirror.close(seconds) for mirror in self._mirrors.values()]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, AsyncRLError):
                raise outcome


class MirrorHandle:
    """The driver's handle of one mirror's actor. Every call has a deadline, and raises ``ProcessDied`` if the mirror is gone."""

    def __init__(self, actor: Any, node: str, log: Path) -> None:
        self._actor, self._log = actor, log
        self._name = f"the mirror of weights on node {node[:8]}"

    async def address(self) -> Address:
        """See :class:`MirrorOfNode`."""
        return Address(*await self._ask(self._actor.address.remote(), "come up", ANSWER_DEADLINE_S))

    async def serve(self, version: PolicyVersion, files: Sequence[WeightFile]) -> None:
        """See :class:`MirrorOfNode`."""
        await self._ask(self._actor.serve.remote(version, files), f"serve version {version}", ANSWER_DEADLINE_S)

    async def fetch(
        self, version: PolicyVersion, files: Sequence[WeightFile], sources: dict[str, list[Address]], seconds: float
    ) -> tuple[WeightFile, ...]:
        """See :class:`MirrorOfNode`."""
        asked = self._actor.fetch.remote(version, files, sources, seconds)
        # Longer than the deadline that the mirror keeps itself, because its error says more.
        return await self._ask(asked, f"fetch version {version}", seconds + ANSWER_DEADLINE_S)

    async def close(self, seconds: float) -> None:
        """See :class:`MirrorOfNode`."""
        await self._ask(self._actor.close.remote(), "close", seconds)

    async def _ask(self, answer: "ray.ObjectRef[T]", what: str, seconds: float) -> T:
        remedy = f"see {self._log}; its node or the network to it may be overloaded"
        return await ask(answer, of=f"{self._name} to {what}", by="the driver", seconds=seconds, remedy=remedy)


def make_mirror(node: str, folder: RunFolder, secret: bytes, tls: TlsKeys | None = None) -> MirrorHandle:
    """Make the process of the mirror of ``node``, given as Ray's id.

    Args:
        secret: what the mirrors of this run show to one another.
        tls: the run's keys if its connections are encrypted.
    """
    log = folder.logs / f"mirror-{node[:8]}.log"
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    actor = RemoteMirror.options(num_cpus=0, max_concurrency=SIDE_BY_SIDE, scheduling_strategy=where).remote(
        folder.run_id, folder.run_id_before, secret, log, tls
    )
    return MirrorHandle(actor, node, log)
