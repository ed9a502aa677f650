"""Where each process of a run is, from launch to end: the plan of :mod:`asyncrl.run.nodes.placement`, kept up as processes come
and go.

What always holds: what a process takes is counted on its node until the process has left, whatever Ray has noticed so far.
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.nodes.cluster_nodes import Nodes, NodesSeen
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.nodes.placement import Node, Part, place
from asyncrl.run.nodes.process_kinds import remedies


class Place(msgspec.Struct, frozen=True):
    """The place of one process: its part, Ray's id of its node, and what it takes there, by Ray's names of resources."""

    part: str
    node: str
    each: Mapping[str, float]

    @property
    def options(self) -> dict[str, Any]:
        """Ray's options of an actor in this place."""
        further = {name: amount for name, amount in self.each.items() if name not in ("CPU", "GPU", "memory")}
        return {
            "num_cpus": self.each.get("CPU", 0),
            "num_gpus": self.each.get("GPU", 0),
            "memory": self.each.get("memory", 0) or None,
            "resources": further or None,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(self.node, soft=False),
        }


class Places:
    """The places of a run's processes, by name.

    Args:
        parts: the parts of the run.
        nodes: reads which nodes are alive, and what is free on them without what this run takes.
        remedies: what would help where there is no room.
        sizes: the memory that a process of each part is expected to take, in bytes, where a run has one machine to itself: its
            processes share what there is, but newcomers must fit into what is free then. None where each takes its own.

    Raises:
        NoRoom: the cluster cannot take the run.

    Attributes:
        driver: the id of the driver's node.
        hosts: the host of each node that was ever seen, for people.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        nodes: Callable[[], Nodes],
        remedies: Sequence[str] = (),
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self._parts = {part.name: part for part in parts}
        self._read, self._remedies, self._sizes = nodes, remedies, sizes
        self._taken: dict[str, Place] = {}
        self.hosts: dict[str, str] = {}
        now = self._now()
        self.driver = now.driver
        self._planned = {name: deque(ids) for name, ids in place(parts, now.alive, now.driver, remedies=remedies).items()}

    @property
    def on_node(self) -> Counter[str]:
        """How many processes of the run are on each node, or will be."""
        return self.on_node_of(self._parts)

    def on_node_of(self, parts: Collection[str]) -> Counter[str]:
        """How many processes of some parts are on each node, or will be."""
        taken = Counter(where.node for where in self._taken.values() if where.part in parts)
        return sum((Counter(nodes) for part, nodes in self._planned.items() if part in parts), taken)

    @property
    def others(self) -> set[str]:
        """The nodes other than the driver's on which the run has processes, or will have."""
        return self.on_node.keys() - {self.driver}

    def nodes_of(self, part: str) -> Counter[str]:
        """How many processes of a part are on each node, or will be."""
        taken = Counter(where.node for where in self._taken.values() if where.part == part)
        return taken + Counter(self._planned[part])

    def take(self, process: str, part: str) -> Place:
        """Give a process of a part its place: the planned one, or if all are taken, one for which there is room.

        Raises:
            NoRoom: no node that is alive has room.
        """
        planned = self._planned[part]
        where = Place(part, planned.popleft() if planned else self._one_more(part), self._parts[part].each)
        self._taken[process] = where
        return where

    def check_memory(self, part: str, newcomers: int) -> None:
        """Check that newcomers of a part fit into the memory that is free now, on a machine that the run has to itself.

        Raises:
            NoRoom: they do not fit.
        """
        if self._sizes is None:
            return
        here, each = Machine.here(), {"memory": float(self._sizes[part])}
        node = Node(self.driver, "this machine", {"memory": float(here.memory)}, {"memory": float(here.free)})
        wanted = Part(f"newcomers of {part}", newcomers, each, key=f"newcomers of {part}")
        place((wanted,), (node,), self.driver, remedies=self._remedies)

    def leave(self, process: str) -> None:
        """Note that ``process`` is gone. Harmless if it was gone before."""
        self._taken.pop(process, None)

    def _one_more(self, part: str) -> str:
        nodes, one = self._now(), msgspec.structs.replace(self._parts[part], count=1, together=1)
        there = {name: [where.node for where in self._taken.values() if where.part == name] for name in self._parts}
        ((node,),) = place((one,), tuple(map(self._left, nodes.alive)), nodes.driver, there, self._remedies).values()
        return node

    def _now(self) -> Nodes:
        nodes = self._read()
        self.hosts |= {node.id: node.host for node in nodes.alive}
        return nodes

    def _left(self, node: Node) -> Node:
        """Return a node with what the run's processes leave free on it."""
        free = dict(node.free)
        for where in self._taken.values():
            if where.node == node.id:
                for name, amount in where.each.items():
                    free[name] = free.get(name, 0) - amount
        return msgspec.structs.replace(node, free=free)


def find_places(recipe: Recipe, parts: Callable[..., Sequence[Part]], nodes: NodesSeen, sizes: Mapping[str, int]) -> Places:
    """Find the places of a run's parts in the cluster that this process has joined.

    Args:
        parts: :func:`asyncrl.run.nodes.process_kinds.parts_of`, or ``pools_of`` where nothing is trained.
        sizes: the memory that a process of each part is expected to take, in bytes.

    Raises:
        NoRoom: the cluster cannot take them.
    """
    joined = bool(os.environ.get("RAY_ADDRESS"))
    on_gpus = any(node.has.get("GPU") for node in nodes().alive)
    found = parts(recipe, on_gpus=on_gpus, sizes=sizes if joined and not on_gpus else None)
    further = tuple(remedies(recipe, joined=joined, on_gpus=on_gpus))
    return Places(found, nodes, further, None if joined else sizes)
