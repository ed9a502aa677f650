"""Where each process of a run is, from launch to end: in placement groups of Ray, kept up as processes come and go.

The learner is one group, with a bundle for each set of ranks that belong together; each engine is one, and so is the reward
model. A group is asked for on the nodes that the plan names (:mod:`asyncrl.run.nodes.placement`); where that comes to nothing, it
is asked for anywhere. What always holds: what has no room is pending in Ray, where an autoscaler sees it; whoever waits for it
hears soon what is missing, what the cluster has and what would help; what a process takes is given back once it has left.
"""

import asyncio
import os
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.nodes.cluster_nodes import Nodes, NodesSeen
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.nodes.placement import Node, NoRoom, Part, hardest_first, place, place_what_fits
from asyncrl.run.nodes.placement_groups import NODE, Bundle, RayGroup, RayGroups, Strategy
from asyncrl.run.nodes.process_kinds import remedies

PATIENCE_S = 2.0
"""How long a group may be pending before somebody is told of it."""
WISH_S = 10.0
"""How long a group may be pending on the nodes that the plan names, before it is asked for anywhere."""
PLACING_S = 60.0
"""How long Ray may take to place what there is room for."""
CHECK_S = 1.0
"""Seconds between two looks at whether what is pending is still what is needed. Ray has no event for it."""


class Place(msgspec.Struct, frozen=True):
    """The place of one process: its part, Ray's id of its node, what it takes by Ray's names of resources, and its bundle.

    ``apart`` are the places of those that work as one with it, on other nodes.
    """

    part: str
    node: str
    each: Mapping[str, float]
    group: RayGroup
    bundle: int
    apart: tuple["Place", ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """Ray's options of an actor in this place."""
        further = {name: amount for name, amount in self.each.items() if name not in ("CPU", "GPU", "memory")}
        return {
            "num_cpus": self.each.get("CPU", 0),
            "num_gpus": self.each.get("GPU", 0),
            "memory": self.each.get("memory", 0) or None,
            "resources": further or None,
            "scheduling_strategy": self.group.scheduling(self.bundle),
        }


_Wanted = tuple[Part, tuple[str, ...]]
"""Processes that are asked for together: their part, with as many as are asked for, and the nodes that the plan names, if any."""


class _Asked:
    """A placement group that was asked for.

    Attributes:
        part, wished: see :data:`_Wanted`.
        each_bundle: how many processes are in a bundle; in the last one there may be fewer.
        without: the nodes that were excluded.
        placing: returns the nodes of the bundles.
    """

    def __init__(self, part: Part, wished: tuple[str, ...], groups: RayGroups, without: frozenset[str]) -> None:
        self.part, self.wished, self.without = part, wished, without
        strategy: Strategy = "PACK"
        self.each_bundle, limit = part.together, part.placement.per_node
        if wished:
            pass  # each bundle's label says where it goes
        elif limit is not None:
            self.each_bundle, strategy = limit, "STRICT_SPREAD"
        elif part.placement.strategy == "spread":
            strategy = "SPREAD"
        if part.apart > 1:
            self.each_bundle, strategy = 1, "STRICT_SPREAD"
        bundles = [self._bundle(first) for first in range(0, part.count, self.each_bundle)]
        self.group = groups.ask(bundles, strategy)
        self.placing = asyncio.ensure_future(self.group.placed())

    def _bundle(self, first: int) -> Bundle:
        part, labels = self.part, dict(self.part.labels)
        if self.wished:
            labels[NODE] = self.wished[first]
        elif self.without:
            labels[NODE] = f"!in({','.join(sorted(self.without))})"
        count = min(self.each_bundle, part.count - first)
        return Bundle({name: amount * count for name, amount in part.each.items()}, labels)

    @property
    def places(self) -> list[Place]:
        """The places of its processes, once it is placed."""
        nodes, part = self.placing.result(), self.part
        bundles = [number // self.each_bundle for number in range(part.count)]
        places = [Place(part.name, nodes[bundle], part.each, self.group, bundle) for bundle in bundles]
        firsts = range(0, part.count, part.apart)
        return [msgspec.structs.replace(places[at], apart=tuple(places[at + 1 : at + part.apart])) for at in firsts]

    @property
    def on(self) -> Sequence[str]:
        """The node of each of its processes, as far as it is known or wished."""
        return [each.node for each in _whole(self.places)] if self.placing.done() else self.wished

    def remove(self) -> None:
        """Ask for it no longer."""
        self.placing.cancel()
        self.group.remove()


class Places:
    """The places of a run's processes, by name.

    Args:
        parts: the parts of the run.
        nodes: reads which nodes are alive, and what is free on them without what this run takes.
        groups: asks for placement groups.
        remedies: what would help where there is no room.
        sizes: the memory that a process of each part is expected to take, in bytes, where a run has one machine to itself: its
            processes share what there is, but newcomers must fit into what is free then. None where each takes its own.
        seconds: how long what has no room is waited for; with 0 it is refused at once.

    Attributes:
        driver: the id of the driver's node.
        hosts: the host of each node that was ever seen, for people.
        avoided: returns the ids of nodes that no process should go to now, each with the reason.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        nodes: NodesSeen,
        groups: RayGroups,
        remedies: Sequence[str] = (),
        sizes: Mapping[str, int] | None = None,
        seconds: float = 0,
    ) -> None:
        self._parts = {part.name: part for part in parts}
        self._read, self._groups, self._remedies, self._sizes, self._seconds = nodes, groups, remedies, sizes, seconds
        self._taken: dict[str, Place] = {}
        self._free: dict[str, deque[Place]] = {name: deque() for name in self._parts}
        self._asked: list[_Asked] = []
        self.avoided: Callable[[], Mapping[str, str]] = dict
        self.hosts: dict[str, str] = {}
        self.driver = self._now().driver

    @property
    def _held(self) -> list[Place]:
        """The places that the run has, taken or not."""
        return _whole([*self._taken.values(), *(place for of_part in self._free.values() for place in of_part)])

    @property
    def on_node(self) -> Counter[str]:
        """How many processes of the run are on each node, or will be."""
        return self.on_node_of(self._parts)

    def on_node_of(self, parts: Collection[str]) -> Counter[str]:
        """How many processes of some parts are on each node, or will be."""
        return Counter(where.node for where in self._held if where.part in parts)

    @property
    def others(self) -> set[str]:
        """The nodes other than the driver's on which the run has processes, or may soon have some."""
        return {*self.on_node, *(node for asked in self._asked for node in asked.on)} - {self.driver}

    async def find_all(self, lacking: Callable[[RecipeError], None]) -> None:
        """Wait until there is a place for each process that the run begins with.

        Args:
            lacking: called once with what is missing if there is no room yet.

        Raises:
            NoRoom: the cluster cannot take the run.
        """
        planned = self._plan(tuple(self._parts.values()), waits=bool(self._seconds))
        hardest = hardest_first([*self._parts.values()], self._now().alive)
        wanted = [each for part in hardest for each in _wanted(part, planned[part.name])]
        # What has room first: else what has none could be given it.
        wanted.sort(key=lambda each: not each[1])
        await self._find(wanted, self._seconds, lacking)

    async def add(self, part: str, count: int, successors: bool, lacking: Callable[[RecipeError], None]) -> None:
        """Wait until there are ``count`` further places for processes of a part, or have none of them.

        Processes that work as one have one place, with those of the others in it.

        Args:
            successors: they are for successors, and waited for until cancelled; else for newcomers.
            lacking: called once with what is missing if there is no room yet.

        Raises:
            NoRoom: the cluster has no room for newcomers, or the machine if the run has it to itself.
        """
        if not successors:
            self._check_memory(part, count)
        of_part = self._parts[part]
        more = msgspec.structs.replace(of_part, count=count * of_part.apart)
        planned = self._plan((more,), waits=successors or bool(self._seconds))
        await self._find(_wanted(more, planned[part]), None if successors else self._seconds, lacking)

    def take(self, process: str, part: str) -> Place:
        """Give a process of a part one of the places that were found for it, and that nobody has."""
        where = self._taken[process] = self._free[part].popleft()
        return where

    def leave(self, process: str) -> None:
        """Note that ``process`` is gone, and give its place back. Harmless if it was gone before."""
        where = self._taken.pop(process, None)
        if where is not None and all(other.group is not where.group for other in self._held):
            where.group.remove()

    def close(self) -> None:
        """Give all places back, and end what still runs in them."""
        for where in self._held:
            where.group.remove()
        self._taken.clear()
        self._free.clear()

    def _check_memory(self, part: str, newcomers: int) -> None:
        """Check that newcomers of a part fit into the memory that is free now, on a machine that the run has to itself."""
        if self._sizes is None:
            return
        here, each = Machine.here(), {"memory": float(self._sizes[part])}
        node = Node(self.driver, "this machine", {"memory": float(here.memory)}, {"memory": float(here.free)})
        wanted = Part(f"newcomers of {part}", newcomers, each, key=f"newcomers of {part}")
        place((wanted,), (node,), self.driver, remedies=self._remedies)

    def _plan(self, parts: Sequence[Part], *, waits: bool) -> dict[str, list[str]]:
        """Choose nodes for processes that have no place yet: for all of them, or if ``waits`` for those that fit now.

        Raises:
            NoRoom: some fit on no node, and nobody waits; says which nodes are avoided, and why.
        """
        now, avoided = self._now(), self.avoided()
        left = tuple(self._left(node) for node in now.alive if node.id not in avoided)
        try:
            return place(parts, left, now.driver, self._there(), self._remedies)
        except NoRoom as no_room:
            if waits:
                return place_what_fits(parts, left, now.driver, self._there())
            out = "".join(f"; {self.hosts.get(node, node[:8])} is left out: {why}" for node, why in avoided.items())
            raise NoRoom(no_room.place, f"{no_room.problem}{out}", no_room.remedy) from None

    async def _find(self, wanted: Sequence[_Wanted], seconds: float | None, lacking: Callable[[RecipeError], None]) -> None:
        """Ask for groups, and wait until all are placed; if it comes to nothing, ask for none of them any more."""
        asked, told, began = list[_Asked](), False, asyncio.get_running_loop().time()
        ends = None if seconds is None else began + max(seconds, PLACING_S)
        try:
            for part, wished in wanted:
                asked.append(self._ask(part, wished))
            while pending := [each.placing for each in asked if not each.placing.done()]:
                await asyncio.wait(pending, timeout=CHECK_S)
                now = asyncio.get_running_loop().time()
                asked = [self._still(each, now - began) for each in asked]
                if all(each.placing.done() for each in asked):
                    break
                if ends is not None and now >= ends:
                    raise self._lacking(asked, f"; that was waited for {now - began:.0f} s")
                if not told and now - began >= PATIENCE_S:
                    told = True
                    lacking(self._lacking(asked))
            for each in asked:
                self._free[each.part.name].extend(each.places)
        except BaseException:
            for each in asked:
                each.remove()
            raise
        finally:
            self._asked = [each for each in self._asked if each not in asked]

    def _ask(self, part: Part, wished: tuple[str, ...] = ()) -> _Asked:
        asked = _Asked(part, wished, self._groups, frozenset() if wished else self._without(part))
        self._asked.append(asked)
        return asked

    def _still(self, asked: _Asked, seconds: float) -> _Asked:
        """Return a group that is placed, or still what is needed; else the one that is asked for instead of it."""
        without = self._without(asked.part, but=asked)
        if asked.placing.done():
            if asked.wished or without.isdisjoint(asked.on):
                return asked
        elif asked.wished:
            if seconds < WISH_S and without.isdisjoint(asked.wished):
                return asked
        elif asked.without == without:
            return asked
        self._asked.remove(asked)
        asked.remove()
        return self._ask(asked.part)

    def _without(self, part: Part, but: _Asked | None = None) -> frozenset[str]:
        """The nodes to which no further process of a part may go now."""
        most, here = part.placement.per_node, Counter[str]()
        if most is not None and not part.gang:
            here = self.on_node_of({part.name})
            here.update(node for asked in self._asked if asked.part.name == part.name and asked is not but for node in asked.on)
        return frozenset([*self.avoided(), *(node for node, count in here.items() if most is not None and count >= most)])

    def _lacking(self, asked: Sequence[_Asked], so_far: str = "") -> RecipeError:
        """Say what there is no room for. The first part that lacks it stands for all."""
        pending = [each.part for each in asked if not each.placing.done()]
        count = sum(part.count for part in pending if part.name == pending[0].name)
        missing = msgspec.structs.replace(pending[0], count=count)
        try:
            self._plan((missing,), waits=False)
        except NoRoom as no_room:
            return NoRoom(no_room.place, f"{no_room.problem}{so_far}", no_room.remedy)
        problem = f"Ray has not placed {count} of {missing.name}, although the nodes seem to have room{so_far}"
        return NoRoom(missing.key, problem, "see `ray status`; others may have taken the room meanwhile")

    def _there(self) -> dict[str, list[str]]:
        """The node of each process that has a place or is given one."""
        there: dict[str, list[str]] = {name: [] for name in self._parts}
        for where in self._held:
            there[where.part].append(where.node)
        for asked in self._asked:
            there[asked.part.name].extend(asked.on)
        return there

    def _now(self) -> Nodes:
        nodes = self._read(self._takes)
        self.hosts |= {node.id: node.host for node in nodes.alive}
        return nodes

    def _takes(self, node: str) -> Counter[str]:
        """What the run takes of a node, or is given there, by Ray's names of resources."""
        takes = Counter[str]()
        for name, nodes in self._there().items():
            here = nodes.count(node)
            takes.update({resource: amount * here for resource, amount in self._parts[name].each.items()})
        return takes

    def _left(self, node: Node) -> Node:
        """Return a node with what the run's processes leave free on it."""
        takes = self._takes(node.id)
        return msgspec.structs.replace(node, free={name: free - takes[name] for name, free in node.free.items()})


def _wanted(part: Part, nodes: Sequence[str]) -> list[_Wanted]:
    """Divide a part into what is asked for together: a gang, processes that work as one, or each process by itself."""
    if part.gang:
        return [(part, tuple(nodes))]
    one = msgspec.structs.replace(part, count=part.apart)
    return [(one, tuple(nodes[first : first + part.apart])) for first in range(0, part.count, part.apart)]


def _whole(places: Iterable[Place]) -> list[Place]:
    """Return places, and those of the processes that work as one with theirs."""
    return [each for place in places for each in (place, *place.apart)]


async def find_places(
    recipe: Recipe,
    parts: Callable[..., Sequence[Part]],
    nodes: NodesSeen,
    sizes: Mapping[str, int],
    note: Callable[[str], None],
) -> Places:
    """Find the places of a run's parts in the cluster that this process has joined.

    Args:
        parts: :func:`asyncrl.run.nodes.process_kinds.parts_of`, or ``pools_of`` where nothing is trained.
        sizes: the memory that a process of each part is expected to take, in bytes.
        note: shows a line to the user.

    Raises:
        NoRoom: the cluster cannot take them.
    """
    joined = bool(os.environ.get("RAY_ADDRESS"))
    on_gpus = any(node.has.get("GPU") for node in nodes().alive)
    found = parts(recipe, on_gpus=on_gpus, sizes=sizes if joined and not on_gpus else None)
    further = tuple(remedies(recipe, joined=joined, on_gpus=on_gpus))
    seconds = recipe.deadlines.room if joined else 0.0
    places = Places(found, nodes, RayGroups(), further, None if joined else sizes, seconds)
    waits = f"waiting at most {max(seconds, PLACING_S):g} s for room in the cluster (deadlines.room)"
    await places.find_all(lambda no_room: note(f"{no_room.place}: {no_room.problem}; {waits}"))
    return places
