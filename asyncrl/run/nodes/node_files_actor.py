"""The files of one node as a Ray actor."""

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from asyncrl.run.folder.run_memory import sweep_memory
from asyncrl.run.nodes.node_files import NodeFiles

_CALLS_AT_ONCE = 8


class NodeFilesActor(NodeFiles):
    """The files of the node that Ray started it on, from whose memory it first removes what killed runs have left."""

    def __init__(self) -> None:
        sweep_memory()


RemoteNodeFiles = ray.remote(NodeFilesActor)


def start_node_files(node: str) -> Any:
    """Start an actor of :class:`NodeFiles` on the node with this id of Ray, and return its handle."""
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    return RemoteNodeFiles.options(num_cpus=0, max_concurrency=_CALLS_AT_ONCE, scheduling_strategy=where).remote()
