"""The nodes of a Ray cluster as the planner of placement sees them.

``python -m asyncrl.run.nodes.cluster_nodes`` joins the cluster that ``RAY_ADDRESS`` names, writes its nodes as JSON and leaves
it, so that a plan can show where a run would go before the run's own process joins.
"""

import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.process.asked_python import ask_python
from asyncrl.run.nodes.placement import Node

REACH_S = 10.0
"""How long the cluster's address may take to answer; Ray itself would try for a minute, or for longer."""


class Nodes(msgspec.Struct, frozen=True):
    """The nodes of a cluster that are alive, and which of them the driver is on."""

    alive: tuple[Node, ...]
    driver: str


def read_nodes() -> Nodes:
    """Return the nodes of the cluster that this process has joined."""
    import ray
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    alive = [_node(each, free.get(each["NodeID"], {})) for each in ray.nodes() if each["Alive"]]
    driver = str(ray.get_runtime_context().get_node_id())
    return Nodes(tuple(sorted(alive, key=lambda node: (node.id != driver, node.host, node.id))), driver)


def _node(found: Any, free: Any) -> Node:
    return Node(id=found["NodeID"], host=found["NodeManagerAddress"], has=found["Resources"], free=free, labels=found["Labels"])


class NodesSeen:
    """Reads the nodes again and again. What others have taken of a node is what they had when the node was first seen.

    Ray notices only some time later that a process has begun or ended, so what it says is free is not what will be free.

    Args:
        read: reads the nodes as Ray sees them now.
    """

    def __init__(self, read: Callable[[], Nodes]) -> None:
        self._read = read
        self._free: dict[str, Mapping[str, float]] = {}

    def __call__(self, takes: Callable[[str], Mapping[str, float]] = lambda node: {}) -> Nodes:
        """Return the nodes that are alive.

        Args:
            takes: returns what the run that asks takes of a node: on one that is new, this is not what others have taken.
        """
        nodes = self._read()
        for node in nodes.alive:
            if node.id not in self._free:
                mine = takes(node.id)
                self._free[node.id] = {
                    name: min(node.has.get(name, free), free + mine.get(name, 0)) for name, free in node.free.items()
                }
        return Nodes(tuple(msgspec.structs.replace(node, free=self._free[node.id]) for node in nodes.alive), nodes.driver)


def look_up_nodes(seconds: float) -> Nodes:
    """Return the nodes of the cluster that ``RAY_ADDRESS`` names, which this process has not joined.

    Args:
        seconds: how long joining may take, once the address answers.

    Raises:
        ComponentFailed: nothing answers at the address within :data:`REACH_S`, or the cluster cannot be joined.
    """
    _check_answers(os.environ.get("RAY_ADDRESS", ""))
    try:
        return ask_python(Nodes, ("-m", "asyncrl.run.nodes.cluster_nodes"), seconds)
    except TimeoutError as late:
        problem = f"something answers there, but it did not within {seconds:g} s as Ray would"
        raise ComponentFailed(f"cannot join Ray at {os.environ.get('RAY_ADDRESS')}: {problem}") from late


def _check_answers(address: str) -> None:
    """Check that something answers at an address like ``10.0.0.1:6379``; other kinds, such as ``auto``, are left to Ray."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except OSError as error:
        why = f"no answer within {REACH_S:g} s" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise ComponentFailed(f"cannot join Ray at {address}: {why}") from error


if __name__ == "__main__":
    import ray

    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)  # RAY_ADDRESS says which cluster
    except Exception as error:  # noqa: BLE001 - Ray raises errors of any class
        problem = str(error).strip() or type(error).__name__
        sys.exit(f"cannot join Ray at {os.environ.get('RAY_ADDRESS')}: {problem}; see whether RAY_AUTH_TOKEN is the cluster's")
    sys.stdout.write(msgspec.json.encode(read_nodes()).decode() + "\n")
    ray.shutdown()
