"""What transports have in common that bring publications to nodes with a process on each node that needs one, its *mirror*.

What always holds: a publication comes to a node once, however many engines it has; a mirror is made when its node is first asked,
and again when it is needed after it died.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from asyncrl.core.errors import AsyncRLError, ComponentFailed, DeadlineExceeded, ProcessDied
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.shared_work import SharedWork
from asyncrl.run.publications.transport import PublicationTransport

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DRIVER = "the driver"
ANSWER_S = 60.0
"""The deadline of a call of a mirror that needs no work, in seconds."""
VERSIONS = 4
"""Transfers of as many versions are known at once; older ones are over, because their files were overwritten."""


class PiecesLost(ComponentFailed):
    """What a mirror fetches is gone, because the mirror that handed it out died."""


class MirroredTransport(PublicationTransport):
    """Asks mirrors.

    Args:
        make: makes the actor of the mirror of a node, given Ray's id of it and the file for its log.
        logs: the folder of the logs.
        seconds: how long a publication may be on its way to a node (``deadlines.publish``).
    """

    def __init__(self, make: Callable[[str, Path], Any], logs: Path, seconds: float) -> None:
        self._make, self._logs, self._seconds = make, logs, seconds
        self._mirrors: dict[str, Any] = {}
        self._fetching = SharedWork[tuple[PolicyVersion, str], Publication]()

    async def fetch_to_node(self, publication: Publication, node: str) -> Publication:
        """Bring ``publication`` to a node."""
        version, busy = publication.version, self._fetching.under_way
        self._fetching.forget(lambda key: key[0] <= version - VERSIONS and key not in busy)
        fetching = partial(self._fetch, publication, node)
        return await self._fetching.result((version, node), fetching, f"version {version} to node {node[:8]}")

    async def _fetch(self, publication: Publication, node: str) -> Publication:
        """Bring ``publication`` to a node that does not have it, as far as is known."""
        raise NotImplementedError

    async def _ask(self, node: str, what: str, seconds: float, method: str, *arguments: Any) -> Any:
        """Call a method of the mirror of a node, and return its answer.

        Args:
            what: it is to do, for errors.

        Raises:
            ProcessDied: it is gone; whoever asks the node's mirror again gets a successor.
            DeadlineExceeded: it did not answer within ``seconds``, and was killed; or as it raised itself.
            ComponentFailed: what it raised itself.
        """
        if node not in self._mirrors:
            self._mirrors[node] = self._make(node, self._log(node))
        return await self._call(self._mirrors[node], node, what, seconds, method, *arguments)

    async def _call(self, mirror: Any, node: str, what: str, seconds: float, method: str, *arguments: Any) -> Any:
        from asyncrl.run.host.ray_calls import ask  # a plan describes transports without Ray, which takes long to import

        remedy = f"see {self._log(node)}; its node or the network to it may be overloaded, else raise deadlines.publish"
        of = f"the mirror of weights on node {node[:8]} to {what}"
        try:
            return await ask(mirror.call.remote(method, *arguments), of=of, by=_DRIVER, seconds=seconds, remedy=remedy)
        except (ProcessDied, DeadlineExceeded) as error:
            if isinstance(error, DeadlineExceeded) and error.waiter != _DRIVER:  # the mirror itself waited in vain
                raise
            if self._mirrors.get(node) is mirror:  # not its successor, which another call may have had made
                del self._mirrors[node]
            if isinstance(error, DeadlineExceeded):  # it is frozen or cut off, and would keep what it was given
                _kill(mirror)
            raise

    def _log(self, node: str) -> Path:
        return self._logs / f"mirror-{node[:8]}.log"

    async def leave(self, node: str) -> None:
        """End the mirror of a node on which no engine is left, if it has one, and have it remove its files in memory."""
        self._fetching.forget(lambda key: key[1] == node)
        mirror = self._mirrors.pop(node, None)
        if mirror is None:
            return
        try:
            await self._call(mirror, node, "close", ANSWER_S, "close")
        except AsyncRLError as error:
            logger.warning("%s", error)
        _kill(mirror)

    async def close(self, seconds: float) -> None:
        """End what is under way, and have all mirrors remove their files in memory. One that does not answer is killed with the
        run."""
        self._fetching.cancel()
        closing = [self._call(mirror, node, "close", seconds, "close") for node, mirror in list(self._mirrors.items())]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, AsyncRLError):
                raise outcome


async def twice_if_it_dies(work: Callable[[], Awaitable[T]]) -> T:
    """Do ``work``, and once more if a mirror dies in it; if its whole node is gone, its successor does not come up either."""
    try:
        return await work()
    except ProcessDied:
        return await work()


def mirrors_of(folder: RunFolder, kind: Any, *arguments: Any) -> Callable[[str, Path], Any]:
    """Return what makes the actors of a run's mirrors.

    Args:
        kind: the class of a mirror, given the run's id, Ray's id of the node, and ``arguments``.
    """

    def make(node: str, log: Path) -> Any:
        from asyncrl.run.publications.mirror_actor import start_mirror

        return start_mirror(node, log, folder.run_id, folder.run_id_before, kind, *arguments)

    return make


def _kill(mirror: Any) -> None:
    import ray

    ray.kill(mirror)
