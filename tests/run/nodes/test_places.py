"""Where a run's processes are while they come and go, with groups that a test places instead of Ray."""

import asyncio
from collections.abc import Sequence

import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.placement import PlacementConfig
from asyncrl.run.nodes import placed_processes
from asyncrl.run.nodes.cluster_nodes import Nodes, NodesSeen
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.nodes.placed_processes import Places
from asyncrl.run.nodes.placement import Node, NoRoom, Part
from asyncrl.run.nodes.placement_groups import NODE, Bundle

NOTHING = object()


def node(name: str, gpus: float = 0) -> Node:
    return Node(name, name, {"GPU": gpus}, {"GPU": gpus}, {NODE: name})


def part(name: str, count: int, gpus: float = 1, together: int = 1, *, gang: bool = False, **placement) -> Part:
    return Part(name, count, {"GPU": gpus}, PlacementConfig(**placement), together, f"{name}.count", gang)


class Placed:
    """A group that the cluster places as soon as it has room."""

    def __init__(self, cluster: "FakeRay", bundles: Sequence[Bundle], strategy: str) -> None:
        self._cluster, self.bundles, self.strategy = cluster, bundles, strategy
        self.nodes: list[str] = []

    async def placed(self) -> list[str]:
        while not self._cluster.place(self):  # noqa: ASYNC110 - the fake changes with the passes of the loop only
            await asyncio.sleep(0)
        return self.nodes

    def scheduling(self, bundle: int) -> object:
        return NOTHING

    def remove(self) -> None:
        if self in self._cluster.asked:
            self._cluster.asked.remove(self)
            self.nodes = []


class FakeRay:
    """Places groups as Ray does: on any nodes that have room and suitable labels."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = list(nodes)
        self.asked: list[Placed] = []
        self.taken_by_others: set[str] = set()

    def read(self) -> Nodes:
        return Nodes(tuple(self.nodes), self.nodes[0].id)

    def ask(self, bundles: Sequence[Bundle], strategy: str) -> Placed:
        self.asked.append(Placed(self, bundles, strategy))
        return self.asked[-1]

    def place(self, group: Placed) -> bool:
        if group not in self.asked or group.nodes:
            return bool(group.nodes)
        chosen: list[str] = []
        for bundle in group.bundles:
            for each in sorted(self.nodes, key=self._free, reverse=True):  # Ray takes the node with the most room
                here = chosen.count(each.id) and group.strategy == "STRICT_SPREAD"
                taken = sum(b.amounts.get("GPU", 0) for b, n in zip(group.bundles, chosen, strict=False) if n == each.id)
                if self._suits(each, bundle) and not here and self._free(each) - taken >= bundle.amounts.get("GPU", 0):
                    chosen.append(each.id)
                    break
            else:
                return False
        group.nodes = chosen
        return True

    def _free(self, node: Node) -> float:
        used = sum(
            b.amounts.get("GPU", 0)
            for group in self.asked
            for b, n in zip(group.bundles, group.nodes, strict=False)
            if n == node.id
        )
        return 0 if node.id in self.taken_by_others else node.has["GPU"] - used

    @staticmethod
    def _suits(node: Node, bundle: Bundle) -> bool:
        wanted = bundle.labels.get(NODE, node.id)
        return node.id not in wanted[4:-1].split(",") if wanted.startswith("!in(") else node.id == wanted


def places_of(ray: FakeRay, *parts: Part, seconds: float = 0) -> Places:
    return Places(parts, NodesSeen(ray.read), ray, ["add nodes"], seconds=seconds)


def unexpected(no_room: RecipeError) -> None:
    raise AssertionError(str(no_room))


async def test_a_run_is_placed_as_planned_and_a_successor_where_there_is_room() -> None:
    ray = FakeRay(node("a", 2), node("b", 2))
    places = places_of(ray, part("learner", 1, gang=True), part("generators", 3))
    await places.find_all(unexpected)
    assert sum(places.on_node.values()) == 4
    assert places.take("learner rank 0", "learner").node == "a"
    on = {name: places.take(name, "generators").node for name in ("generator-0", "generator-1", "generator-2")}
    assert sorted(on.values()) == ["a", "b", "b"]
    with pytest.raises(NoRoom, match="no room for 1 of 1 processes of generators"):
        await places.add("generators", 1, False, unexpected)
    gone = next(name for name, where in on.items() if where == "b")
    places.leave(gone)
    places.leave(gone)
    await places.add("generators", 1, False, unexpected)
    assert places.take("generator-4", "generators").node == "b"
    ray.nodes[1] = node("c", 8)  # the node b is lost, and another one comes
    await places.add("generators", 1, False, unexpected)
    assert places.take("generator-5", "generators").node == "c"


async def test_what_has_no_room_is_pending_until_the_cluster_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_processes, "PATIENCE_S", 0.0)
    monkeypatch.setattr(placed_processes, "CHECK_S", 0.001)
    ray, told = FakeRay(node("a", 2)), list[str]()
    places = places_of(ray, part("learner", 1, gang=True), part("generators", 3, 2), seconds=60)
    finding = asyncio.create_task(places.find_all(lambda no_room: told.append(str(no_room))))
    while not told:  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(0)
    assert not finding.done()
    assert len(ray.asked) == 4, "an autoscaler sees all that is missing"
    assert "no room for 3 of 3 processes of generators" in told[0]
    assert "a with 2 GPU, of which 1 free" in told[0]
    ray.nodes += [node("b", 4), node("c", 2)]
    await finding
    assert places.on_node == {"a": 1, "b": 2, "c": 1}
    assert places.take("learner rank 0", "learner").node == "a", "beside the driver, where there was room"
    places.leave("learner rank 0")
    assert len(told) == 1
    assert len(ray.asked) == 3, "its room is given back"


async def test_nothing_is_asked_for_any_more_once_the_deadline_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_processes, "PLACING_S", 0.0)
    monkeypatch.setattr(placed_processes, "CHECK_S", 0.001)
    ray = FakeRay(node("a", 2))
    places = places_of(ray, part("learner", 1, gang=True), part("generators", 3), seconds=0.01)
    with pytest.raises(NoRoom, match=r"no room for 2 of 2 processes of generators.*; that was waited for 0 s; add nodes"):
        await places.find_all(lambda no_room: None)
    assert ray.asked == []
    assert not places.on_node


async def test_room_that_others_take_meanwhile_is_asked_for_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_processes, "WISH_S", 0.0)
    monkeypatch.setattr(placed_processes, "CHECK_S", 0.001)
    ray = FakeRay(node("a", 2), node("b", 2))
    places = places_of(ray, part("generators", 2))
    ray.taken_by_others.add("a")  # where both would go
    await places.find_all(lambda no_room: None)
    assert places.on_node == {"b": 2}


async def test_no_node_is_given_more_processes_than_the_part_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what is planned Ray decides, which knows nothing of the engines' other groups."""
    monkeypatch.setattr(placed_processes, "CHECK_S", 0.001)
    ray = FakeRay(node("a", 9))
    places = places_of(ray, part("generators", 3, per_node=1), part("learner", 4, together=2, gang=True, per_node=2), seconds=60)
    finding = asyncio.create_task(places.find_all(lambda no_room: None))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not finding.done()
    ray.nodes += [node("b", 9), node("c", 9)]
    await finding
    assert places.on_node_of({"generators"}) == {"a": 1, "b": 1, "c": 1}
    ranks = [places.take(f"learner rank {rank}", "learner").node for rank in range(4)]
    assert ranks[0] == ranks[1] != ranks[2] == ranks[3]


async def test_a_successor_waits_as_long_as_it_takes_and_goes_to_no_node_that_is_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_processes, "PATIENCE_S", 0.0)
    monkeypatch.setattr(placed_processes, "PLACING_S", 0.0)
    monkeypatch.setattr(placed_processes, "CHECK_S", 0.001)
    ray, told = FakeRay(node("a", 1), node("b", 1)), list[RecipeError]()
    places = places_of(ray, part("generators", 2, strategy="spread"))
    await places.find_all(unexpected)
    places.take("generator-0", "generators"), places.take("generator-1", "generators")
    places.leave("generator-1")
    silent = {"b": "it does not answer"}
    places.avoided = lambda: silent
    adding = asyncio.create_task(places.add("generators", 1, True, told.append))
    while not told:  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(0)
    assert not adding.done()
    assert "is left out: it does not answer" in told[0].problem
    silent.clear()  # it answers again
    async with asyncio.timeout(60):
        await adding
    assert places.take("generator-2", "generators").node == "b"
    places.leave("generator-2")
    silent["b"] = "it does not answer"
    adding = asyncio.create_task(places.add("generators", 1, True, told.append))
    await asyncio.sleep(0)
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert len(ray.asked) == 1, "nobody needs it any more"


async def test_newcomers_must_fit_into_the_memory_of_a_machine_that_the_run_has_to_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run itself may expect more than there is, since its processes share it; each asks for 1 GiB here, and 3 are free."""
    monkeypatch.setattr("asyncrl.run.nodes.placed_processes.Machine.here", lambda: Machine(8 << 30, 3 << 30, 2))
    parts, ray = [Part("generators", 20, {})], FakeRay(node("a"))
    places = Places(parts, NodesSeen(ray.read), ray, ["join a cluster"], sizes={"generators": 1 << 30})
    with pytest.raises(
        NoRoom, match=r"no room for 1 of 4 .*1\.0 GiB of memory.*8\.0 GiB of memory, of which 3\.0 GiB free"
    ) as caught:
        await places.add("generators", 4, False, unexpected)
    assert caught.value.remedy == "lower newcomers of generators to at most 3, or join a cluster"
    await places.add("generators", 3, False, unexpected)
    await Places(parts, NodesSeen(ray.read), ray).add("generators", 4, False, unexpected)  # in a cluster each takes its own


async def test_an_engine_on_several_nodes_is_one_place_and_goes_as_a_whole() -> None:
    ray = FakeRay(node("a", 2), node("b", 2), node("c", 1))
    divided = Part("generators", 4, {"GPU": 1}, key="generators.count", apart=2)
    places = places_of(ray, part("learner", 1, gang=True), divided)
    await places.find_all(unexpected)
    engines = [places.take(f"generator-{number}", "generators") for number in range(2)]
    on = [{where.node, *(further.node for further in where.apart)} for where in engines]
    assert all(len(nodes) == 2 for nodes in on), on
    assert sum(places.on_node_of(["generators"]).values()) == 4
    with pytest.raises(NoRoom, match=r"no room for 2 of 2 processes of generators.*, 2 of them on as many nodes"):
        await places.add("generators", 1, False, unexpected)
    ray.nodes.append(node("d", 1))
    with pytest.raises(NoRoom, match=r"lower generators\.engine_nodes"):
        await places.add("generators", 1, False, unexpected)
    places.leave("generator-1")
    await places.add("generators", 1, False, unexpected)
    (further,) = places.take("generator-2", "generators").apart
    assert further.part == "generators"
