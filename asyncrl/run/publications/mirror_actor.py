"""The mirror of the ``tcp`` transport on one node, as a Ray actor."""

from pathlib import Path

import ray

from asyncrl.core.files.memory_owners import MemoryOwner
from asyncrl.core.network.tls import TlsKeys
from asyncrl.run.host.process_output import route_output
from asyncrl.run.host.ray_calls import this_node
from asyncrl.weights.tcp.chunk_wire import Address
from asyncrl.weights.tcp.mirror import Mirror


class MirrorActor(Mirror):
    """The mirror of the node that Ray started it on; its methods run side by side in threads.

    Args:
        run_id: unique among the runs on this host.
        before: the id of the killed run that this one resumes, whose files here are removed.
        secret: the run's secret.
        tls: the run's keys if its connections are encrypted.
    """

    def __init__(self, run_id: str, before: str | None, secret: bytes, log_file: Path, tls: TlsKeys | None) -> None:
        route_output(log_file)
        if before is not None:
            self.remove_left_behind(before)
        self._memory = MemoryOwner(run_id)
        super().__init__(run_id, this_node(), secret, ray.util.get_node_ip_address(), tls=tls)

    def where(self) -> Address:
        """Where other mirrors fetch from this one."""
        return self.address

    def close(self) -> None:
        """Stop serving, and remove the files."""
        super().close()
        self._memory.close()


RemoteMirror = ray.remote(MirrorActor)
