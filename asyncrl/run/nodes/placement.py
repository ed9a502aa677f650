"""Plans which node of a cluster each process of a run would go to; :mod:`asyncrl.run.nodes.placed_processes` asks Ray.

A plan says before anything runs where a run would go, and which nodes it would rather have: Ray's placement groups know nothing
of one another, and each goes where most is free. What always holds: no node is given more than it has; processes that belong
together are on one node; no node is given more processes of a part than the part allows, and none without the GPU kind and the
labels that it asks for. What cannot be placed is named, with what the cluster has and what would help, because Ray would wait
for the missing room without a word.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, permutations
from math import floor, inf

import msgspec
from msgspec.structs import replace

from asyncrl.core.errors import RecipeError
from asyncrl.core.measures.units import memory
from asyncrl.core.recipe.placement import PlacementConfig

ORDERS_TRIED = 120
"""In how many orders of the parts a placement is tried before it is refused."""
NODES_SHOWN = 6
"""How many kinds of nodes an error names."""
ROUNDING = 1e-6
"""Ray counts resources in steps of a ten-thousandth, so less than this is no difference."""
GPU_KIND = "ray.io/accelerator-type"
"""Ray's label of a node with GPUs: what kind they are."""


class Node(msgspec.Struct, frozen=True):
    """A node of a cluster.

    Attributes:
        id: Ray's id.
        host: its address, for people.
        has, free: what it has in all, and what nobody has taken, by Ray's names of resources. Memory is in bytes.
        labels: Ray's labels of it.
    """

    id: str
    host: str
    has: Mapping[str, float]
    free: Mapping[str, float]
    labels: Mapping[str, str] = {}


class Part(msgspec.Struct, frozen=True):
    """Equal processes of a run.

    Attributes:
        name: ``learner``, ``reward model``, or the name of a pool of generators.
        count: how many there are.
        each: what each takes of its node, by Ray's names of resources.
        placement: which nodes they go to.
        together: this many, counted from the first, are on one node; divides ``count``.
        apart: this many, counted from the first, are on as many nodes, and work as one; divides ``count``. Either is 1.
        key: the recipe key that says how many there are.
        gang: none of them can work without all others.
    """

    name: str
    count: int
    each: Mapping[str, float]
    placement: PlacementConfig = PlacementConfig()
    together: int = 1
    key: str = ""
    gang: bool = False
    apart: int = 1

    @property
    def labels(self) -> dict[str, str]:
        """The labels that a node must have for its processes, by Ray's names."""
        kind = {} if self.placement.gpu_kind is None else {GPU_KIND: self.placement.gpu_kind}
        return {**self.placement.labels, **kind}


class NoRoom(RecipeError):
    """The cluster has no room for a part of the run."""


def place(
    parts: Sequence[Part],
    nodes: Sequence[Node],
    driver: str,
    there: Mapping[str, Sequence[str]] = {},
    remedies: Sequence[str] = (),
) -> dict[str, list[str]]:
    """Choose a node for each process.

    Args:
        nodes: the nodes that are alive.
        driver: the id of the driver's node.
        there: the nodes of processes that are already placed, by part. ``free`` of the nodes is without what these take.
        remedies: what would help where there is no room, beside what follows from the part.

    Returns:
        the ids of the nodes of each part's processes, in their order.

    Raises:
        NoRoom: some process fits on no node.
    """
    first: _Lacking | None = None
    for order in islice(permutations(hardest_first(parts, nodes)), ORDERS_TRIED):
        planned = _place(order, nodes, driver, there)
        if not isinstance(planned, _Lacking):
            return {part.name: planned[part.name] for part in parts}
        first = first or planned
    assert first is not None
    lacking = first

    def lacks(count: int) -> bool:
        fewer = [replace(part, count=count) if part.name == lacking.part.name else part for part in parts]
        return isinstance(_place(hardest_first(fewer, nodes), nodes, driver, there), _Lacking)

    fitting = bisect_left(range(1, lacking.part.count), True, key=lacks)  # beside all other parts
    raise NoRoom(*_why(lacking, fitting, parts, nodes, remedies))


def place_what_fits(
    parts: Sequence[Part], nodes: Sequence[Node], driver: str, there: Mapping[str, Sequence[str]] = {}
) -> dict[str, list[str]]:
    """Choose a node for each process for which there is room, of a gang for all processes or for none; see :func:`place`.

    Gangs come first: the learner should be beside the driver, if it can.
    """
    planning, placed = _Planning(nodes, driver, there), dict[str, list[str]]()
    for part in sorted(hardest_first(parts, nodes), key=lambda part: not part.gang):
        found = planning.place(part)
        placed[part.name] = [] if part.gang and len(found) < part.count else found
    return placed


class _Lacking(msgspec.Struct, frozen=True):
    """A part for which there was no room, and for how many of its processes there was none."""

    part: Part
    left: int


def _place(
    order: Sequence[Part], nodes: Sequence[Node], driver: str, there: Mapping[str, Sequence[str]]
) -> "dict[str, list[str]] | _Lacking":
    planning, placed = _Planning(nodes, driver, there), dict[str, list[str]]()
    for part in order:
        placed[part.name] = planning.place(part)
        if len(placed[part.name]) < part.count:
            return _Lacking(part, part.count - len(placed[part.name]))
    return placed


def hardest_first(parts: Sequence[Part], nodes: Sequence[Node]) -> list[Part]:
    """Sort parts: those that few nodes can take first, then those whose processes need the most on one node.

    Where one resource is short, and sizes divide each other as numbers of GPUs usually do, this order finds room if there is any.
    """

    def hardness(part: Part) -> tuple[float, ...]:
        suitable = sum(_suits(node, part) for node in nodes)
        size = part.together * part.each.get("GPU", 0)
        return suitable, -size, -part.together * part.each.get("CPU", 0), -part.together * part.each.get("memory", 0)

    return sorted(parts, key=hardness)


def _suits(node: Node, part: Part) -> bool:
    return all(node.labels.get(name) == value for name, value in part.labels.items())


class _Planning:
    """What is free on each node while a placement is made, and how many processes of each part are there."""

    def __init__(self, nodes: Sequence[Node], driver: str, there: Mapping[str, Sequence[str]]) -> None:
        self._nodes, self._driver = nodes, driver
        self._free = {node.id: dict(node.free) for node in nodes}
        self._of_part = {name: Counter(places) for name, places in there.items()}
        self._of_run: Counter[str] = sum(self._of_part.values(), Counter())

    def place(self, part: Part) -> list[str]:
        """Choose the nodes of a part's processes; fewer than it has if there is no room for all."""
        chosen: list[str] = []
        here = self._of_part.setdefault(part.name, Counter())
        while (left := (part.count - len(chosen)) // part.together) > 0:
            fitting = [(node, fits) for node in self._nodes if (fits := self._fits(part, node))]
            if len(fitting) < part.apart:
                break
            if part.apart > 1:
                roomiest = sorted(fitting, key=lambda pair: (-pair[1], *self._by_packing(here, left, *pair)))
                taking = [(node, 1) for node, _ in roomiest[: part.apart]]
            elif part.placement.strategy == "spread":
                fewest = min(here[node.id] for node, _ in fitting)
                next_ones = sorted((pair for pair in fitting if here[pair[0].id] == fewest), key=self._by_room)[:left]
                taking = [(node, 1) for node, _ in next_ones]
            else:
                node, fits = min(fitting, key=lambda pair: self._by_packing(here, left, *pair))
                taking = [(node, min(left, fits))]
            for node, groups in taking:
                taken = part.together * groups
                chosen += [node.id] * taken
                here[node.id] += taken
                self._of_run[node.id] += taken
                for name, amount in part.each.items():
                    self._free[node.id][name] = self._free[node.id].get(name, 0) - amount * taken
        if part.apart > 1:
            return chosen
        return sorted(chosen, key=chosen.index)  # processes that follow one another, such as ranks, are neighbours

    def _fits(self, part: Part, node: Node) -> int:
        """How many groups of processes that belong together the node has room for."""
        if not _suits(node, part):
            return 0
        most = inf if part.placement.per_node is None else part.placement.per_node - self._of_part[part.name][node.id]
        for name, amount in part.each.items():
            most = min(most, self._free[node.id].get(name, 0) / amount + ROUNDING)
        return max(0, floor(min(most, part.count) / part.together))

    def _by_room(self, fitting: tuple[Node, int]) -> tuple[float, ...]:
        node, fits = fitting
        return self._of_run[node.id], -fits, node.id != self._driver

    def _by_packing(self, here: Counter[str], left: int, node: Node, fits: int) -> tuple[float, ...]:
        return -min(fits, left), not here[node.id], node.id != self._driver, not self._of_run[node.id], fits


def _why(
    lacking: _Lacking, fitting: int, parts: Sequence[Part], nodes: Sequence[Node], remedies: Sequence[str]
) -> tuple[str, str, str]:
    """Return the place, problem and remedy of an error; there is room for ``fitting`` processes of the part that lacks it."""
    part, left = lacking.part, lacking.left
    placement, key = part.placement, part.key or f"{part.name}.count"
    together = f", {part.together} of them on one node" if part.together > 1 else ""
    together += f", {part.apart} of them on as many nodes" if part.apart > 1 else ""
    limit = "" if placement.per_node is None else f", at most {placement.per_node} on a node"
    kind = "" if placement.gpu_kind is None else f", on GPUs of kind {placement.gpu_kind}"
    labels = "".join(f", on nodes with label {name}={value}" for name, value in placement.labels.items())
    needed = " + ".join(f"{each.count} x {_amounts(each.each)} ({each.name})" for each in parts)
    takes, needs = f", each of which takes {_amounts(part.each)}", f"The run needs {needed}, and there is: "
    if not part.each:  # a run that has one machine to itself, whose processes share what there is
        takes, needs = "", "There is: "
    problem = (
        f"there is no room for {left} of {part.count} processes of {part.name}{takes}{together}{limit}{kind}{labels}. "
        f"{needs}{'; '.join(_described(part, nodes))}"
    )
    return key, problem, ", or ".join([*_remedies(part, key, fitting), *remedies])


def _described(part: Part, nodes: Sequence[Node]) -> Iterator[str]:
    """Describe the nodes by what the part asks for; equal nodes together."""
    kinds: dict[str, list[str]] = {}
    for node in nodes:
        had = " and ".join(_free(name, node) for name in part.each if name in node.has)
        asked = {name: value for name in part.labels if (value := node.labels.get(name)) is not None}
        labels = (
            f" ({', '.join(value if name == GPU_KIND else f'{name}={value}' for name, value in asked.items())})" if asked else ""
        )
        had = f" with {had or 'none of ' + ', '.join(part.each)}" if part.each else ""
        kinds.setdefault(had + labels, []).append(node.host)
    for room, hosts in islice(kinds.items(), NODES_SHOWN):
        yield f"{hosts[0] if len(hosts) == 1 else f'{len(hosts)} nodes, each'}{room}"
    if len(kinds) > NODES_SHOWN:
        yield f"and {sum(map(len, islice(kinds.values(), NODES_SHOWN, None)))} other nodes"


def _remedies(part: Part, key: str, fitting: int) -> Iterator[str]:
    section = key.rpartition(".")[0]
    if part.name == "learner":
        if fitting:
            yield "use fewer learner ranks"
        if part.together > 1:
            yield "set learner.tensor_parallel_nodes=several, which sends each layer's tokens over the network"
    elif fitting // part.apart:
        yield f"lower {key} to at most {fitting // part.apart}"
    if part.apart > 1:
        yield f"lower {section}.engine_nodes"
    if part.placement.per_node is not None:
        yield f"raise {section}.placement.per_node"
    if part.placement.gpu_kind is not None:
        yield f"leave out {section}.placement.gpu_kind"
    if part.placement.labels:
        yield f"leave out {section}.placement.labels"
    if part.placement.resources:
        yield f"lower {section}.placement.resources"


def _free(name: str, node: Node) -> str:
    free, has = node.free.get(name, 0), node.has[name]
    return _amount(name, has) if free == has else f"{_amount(name, has)}, of which {_number(name, free)} free"


def _amounts(each: Mapping[str, float]) -> str:
    return " and ".join(_amount(name, amount) for name, amount in each.items()) or "nothing"


def _amount(name: str, amount: float) -> str:
    return f"{_number(name, amount)} {'of memory' if name == 'memory' else name}"


def _number(name: str, amount: float) -> str:
    return memory(amount) if name == "memory" else f"{amount:g}"
