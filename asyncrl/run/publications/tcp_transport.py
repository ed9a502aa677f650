"""The ``tcp`` transport: brings publications to the nodes of the engines, through one mirror of weights on each node concerned.

What always holds: each byte of a publication goes to a node once, however many engines it has; a node is sent to another one only
after that one has begun to fetch, so that no two wait for each other; a mirror that died is replaced when it is next needed.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, WeightFile
from asyncrl.run.host.shared_work import SharedWork
from asyncrl.run.publications.node_mirrors import ANSWER_S, NodeMirrors, on_node, twice_if_it_dies
from asyncrl.run.publications.routes import Routes, on_nodes
from asyncrl.run.publications.transport import PublicationTransport, TransportRun
from asyncrl.weights.tcp.chunk_wire import Address

FAN_OUT = 2
"""How many nodes fetch from the same one: from the learner's, or from one that fetches itself. More would share its line to the
network; fewer would make the way to the last node longer."""
_VERSIONS = 4
"""Transfers of as many versions are known at once; older ones are over, because their files were overwritten."""
_SIDE_BY_SIDE = 8
"""Calls that a mirror works on at once: two versions may arrive while others are asked for."""


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


class TcpTransport(PublicationTransport):
    """Has mirrors fetch what is not on their nodes.

    Args:
        make: makes the actor of the mirror of a node, given Ray's id of it and the file for its log.
        logs: the folder of the logs.
        seconds: how long a publication may be on its way to a node (``deadlines.publish``).
    """

    def __init__(self, make: Callable[[str, Path], Any], logs: Path, seconds: float) -> None:
        self._mirrors, self._seconds = NodeMirrors(make, logs), seconds
        self._versions: dict[PolicyVersion, _Transfers] = {}

    @classmethod
    def for_run(cls, run: TransportRun) -> Self:
        """Make the transport, but no mirror yet."""
        folder = run.folder

        def make(node: str, log: Path) -> Any:
            from asyncrl.run.publications.mirror_actor import RemoteMirror

            actor = on_node(RemoteMirror, node, _SIDE_BY_SIDE)
            return actor.remote(folder.run_id, folder.run_id_before, run.secret, log, run.tls)

        return cls(make, folder.logs, run.recipe.deadlines.publish)

    @classmethod
    def describe(cls, routes: Routes) -> str:
        """Say which engines are reached through memory and which by TCP."""
        ways = routes.through_memory
        if routes.beside:
            engines = on_nodes(routes.beside)
            ways.append(f"shm from ranks beside them, and tcp from those on other nodes, to {engines}, once to each")
        if routes.apart:
            ways.append(f"tcp to {on_nodes(routes.apart)} where no rank writes, once to each")
        return "; ".join(ways)

    async def fetch_to_node(self, publication: Publication, node: str) -> Publication:
        """Bring ``publication`` to a node, each of its files from the node that it was written on, or from one that has it."""
        if all(file.node == node for file in publication.files):
            return publication
        transfers = self._versions.setdefault(publication.version, _Transfers())
        for version in sorted(self._versions)[:-_VERSIONS]:
            del self._versions[version]
        name = f"version {publication.version} to node {node[:8]}"
        return await transfers.to_node.result(node, lambda: self._transfer(publication, node, transfers), name)

    async def _transfer(self, publication: Publication, node: str, transfers: _Transfers) -> Publication:
        files = await twice_if_it_dies(lambda: self._transfer_once(publication, node, transfers))
        return msgspec.structs.replace(publication, files=files)

    async def _transfer_once(self, publication: Publication, node: str, transfers: _Transfers) -> tuple[WeightFile, ...]:
        version, files = publication.version, publication.files
        writers = sorted({file.node for file in files} - {node})
        origins = await asyncio.gather(*(self._origin(publication, writer, transfers) for writer in writers))
        mirror = self._mirrors.on(node)
        address = await mirror.ask(lambda actor: actor.where.remote(), "come up", ANSWER_S)
        parent = transfers.join(Address(*address))
        sources = {writer: [*parent, origin] for writer, origin in zip(writers, origins, strict=True)}
        # Longer than the deadline that the mirror keeps itself, because its error says more.
        seconds = self._seconds + ANSWER_S
        fetched: tuple[WeightFile, ...] = await mirror.ask(
            lambda actor: actor.fetch_files.remote(version, files, sources, self._seconds), f"fetch version {version}", seconds
        )
        return fetched

    async def _origin(self, publication: Publication, node: str, transfers: _Transfers) -> Address:
        """Have the mirror of a node that ranks wrote on hand the version out, once for all transfers; return its address."""
        name = f"version {publication.version} handed out by node {node[:8]}"
        return await transfers.origins.result(node, lambda: self._serve(publication, node), name)

    async def _serve(self, publication: Publication, node: str) -> Address:
        mirror, version, files = self._mirrors.on(node), publication.version, publication.files
        address = await mirror.ask(lambda actor: actor.where.remote(), "come up", ANSWER_S)
        await mirror.ask(lambda actor: actor.serve.remote(version, files), f"serve version {version}", ANSWER_S)
        return Address(*address)

    async def close(self, seconds: float) -> None:
        """End the transfers, and have all mirrors remove their files."""
        for transfers in self._versions.values():
            transfers.to_node.cancel()
            transfers.origins.cancel()
        await self._mirrors.close(seconds)
