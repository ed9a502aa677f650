"""The mirror of weights of one node as a Ray actor: see :mod:`asyncrl.weights.tcp.mirror`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import ray

from asyncrl.core.files.memory_owners import MemoryOwner
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.network.tls import TlsKeys
from asyncrl.core.publication import WeightFile
from asyncrl.run.host.process_output import route_output
from asyncrl.run.host.ray_calls import this_node
from asyncrl.weights.tcp.chunk_wire import Address
from asyncrl.weights.tcp.mirror import Mirror

SIDE_BY_SIDE = 8
"""Calls that the actor works on at once: two versions may arrive while others are asked for."""


class MirrorActor:
    """The mirror of the node that Ray started it on; its methods are those of :class:`Mirror` and run side by side in threads.

    Args:
        run_id: unique among the runs on this host.
        before: the id of the killed run that this one resumes, whose files here are removed.
        secret: the run's secret.
        tls: the run's keys if its connections are encrypted.
    """

    def __init__(self, run_id: str, before: str | None, secret: bytes, log_file: Path, tls: TlsKeys | None = None) -> None:
        route_output(log_file)
        if before is not None:
            Mirror.remove_left_behind(before)
        self._memory = MemoryOwner(run_id)
        self._mirror = Mirror(run_id, this_node(), secret, ray.util.get_node_ip_address(), tls=tls)

    def address(self) -> Address:
        """Where other mirrors fetch from this one."""
        return self._mirror.address

    def serve(self, version: PolicyVersion, files: Sequence[WeightFile]) -> None:
        """See :meth:`Mirror.serve`."""
        self._mirror.serve(version, files)

    def fetch(
        self, version: PolicyVersion, files: Sequence[WeightFile], sources: Mapping[str, Sequence[Address]], seconds: float
    ) -> tuple[WeightFile, ...]:
        """See :meth:`Mirror.fetch`."""
        return self._mirror.fetch(version, files, sources, seconds)

    def close(self) -> None:
        """See :meth:`Mirror.close`."""
        self._mirror.close()
        self._memory.close()


RemoteMirror = ray.remote(MirrorActor)
