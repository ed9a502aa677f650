"""Brings publications to the engines through a versioned folder on a file system that all nodes share.

What always holds: every version is stored once, by the nodes that the ranks wrote on; a node fetches it once, however many
engines it has, and only after it is whole in the folder. Engines beside all ranks map what these wrote in memory.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from asyncrl.core.errors import AsyncRLError, ProcessDied
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication
from asyncrl.run.actors.disk_mirror import RemoteDiskMirror
from asyncrl.run.asking import ANSWER_DEADLINE_S, ask
from asyncrl.run.folder import RunFolder

T = TypeVar("T")

SIDE_BY_SIDE = 4
"""Calls that a mirror works on at once: it may store one version and fetch another."""
SEEN_S = 10.0
"""How long a node may take to see a version that another node has stored."""
_VERSIONS = 4
"""Transfers of as many versions are known at once."""


class DiskPublications:
    """Implements :class:`asyncrl.run.mirrors.LocalPublications`.

    Args:
        make: makes the actor of the mirror of a node, given Ray's id of it.
        seconds: how long storing or fetching a version may take (``deadlines.publish``).
    """

    def __init__(self, make: Callable[[str], Any], seconds: float) -> None:
        self._make, self._seconds = make, seconds
        self._mirrors: dict[str, Any] = {}
        self._stored: dict[PolicyVersion, asyncio.Task[None]] = {}
        self._fetches: dict[tuple[PolicyVersion, str], asyncio.Task[Publication]] = {}

    async def fetch(self, publication: Publication, node: str) -> Publication:
        """See :meth:`asyncrl.run.mirrors.LocalPublications.fetch`."""
        for version, other in [key for key in self._fetches if key[0] <= publication.version - _VERSIONS]:
            del self._fetches[version, other]
        fetching = self._fetches.get((publication.version, node))
        if fetching is None or _failed(fetching):
            name = f"version {publication.version} to node {node[:8]}"
            fetching = asyncio.create_task(self._fetch(publication, node), name=name)
            self._fetches[publication.version, node] = fetching
        return await asyncio.shield(fetching)

    async def _fetch(self, publication: Publication, node: str) -> Publication:
        version = publication.version
        storing = self._stored.get(version)
        if storing is None or _failed(storing):
            for old in [each for each in self._stored if each <= version - _VERSIONS]:
                del self._stored[old]
            storing = self._stored[version] = asyncio.create_task(self._store(publication), name=f"version {version} to disk")
        await asyncio.shield(storing)
        if all(file.node == node for file in publication.files):
            return publication
        mirror = self._mirror(node)
        files = await self._ask(mirror.fetch.remote(version, SEEN_S), node, f"fetch version {version}", self._seconds)
        return msgspec.structs.replace(publication, files=files)

    async def _store(self, publication: Publication) -> None:
        version, nodes = publication.version, sorted({file.node for file in publication.files})
        parts = await asyncio.gather(
            *(
                self._ask(self._mirror(node).store.remote(publication), node, f"store version {version}", self._seconds)
                for node in nodes
            )
        )
        stored = {number: file for part in parts for number, file in part.items()}
        files = [stored[number] for number in range(len(publication.files))]
        read = {each for (each, _), fetching in self._fetches.items() if not fetching.done()}
        completing = self._mirror(nodes[0]).complete.remote(version, publication.fingerprint, files, read)
        await self._ask(completing, nodes[0], f"complete version {version}", ANSWER_DEADLINE_S)

    def _mirror(self, node: str) -> Any:
        if node not in self._mirrors:
            self._mirrors[node] = self._make(node)
        return self._mirrors[node]

    async def _ask(self, answer: "ray.ObjectRef[T]", node: str, what: str, seconds: float) -> T:
        of, remedy = f"the mirror of weights on node {node[:8]} to {what}", "see its log; raise deadlines.publish"
        try:
            return await ask(answer, of=of, by="the driver", seconds=seconds, remedy=remedy)
        except ProcessDied:
            self._mirrors.pop(node, None)  # a successor stores and fetches whole files first
            raise

    async def close(self, seconds: float) -> None:
        """End what is under way, and have all mirrors remove their files in memory."""
        for task in (*self._fetches.values(), *self._stored.values()):
            task.cancel()
        closing = [self._ask(mirror.close.remote(), node, "close", seconds) for node, mirror in self._mirrors.items()]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, AsyncRLError):
                raise outcome


def _failed(task: "asyncio.Task[T]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def make_disk_mirror(node: str, folder: RunFolder, weights: Path, delta: bool) -> Any:
    """Make the actor of the mirror of ``node``, given as Ray's id, which stores in the folder ``weights``."""
    where, log = NodeAffinitySchedulingStrategy(node, soft=False), folder.logs / f"mirror-{node[:8]}.log"
    return RemoteDiskMirror.options(num_cpus=0, max_concurrency=SIDE_BY_SIDE, scheduling_strategy=where).remote(
        folder.run_id, folder.run_id_before, weights, delta, log
    )
