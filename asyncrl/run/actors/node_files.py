"""The files of one node as a Ray actor."""

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from asyncrl.run.node_files import NodeFiles

_CALLS_AT_ONCE = 8

RemoteNodeFiles = ray.remote(NodeFiles)


def start_node_files(node: str) -> Any:
    """Start an actor of :class:`NodeFiles` on the node with this id of Ray, and return its handle."""
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    return RemoteNodeFiles.options(num_cpus=0, max_concurrency=_CALLS_AT_ONCE, scheduling_strategy=where).remote()
