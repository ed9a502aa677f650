"""Which node each process of a run goes to."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.recipe.placement import PlacementConfig
from asyncrl.run.nodes.cluster_nodes import Nodes, NodesSeen
from asyncrl.run.nodes.placement import GPU_KIND, Node, NoRoom, Part, place, place_what_fits


def node(name: str, gpus: float = 0, *, free: float | None = None, kind: str = "", **further: float) -> Node:
    has = {"GPU": gpus, **further}
    return Node(name, name, has, {**has, "GPU": gpus if free is None else free}, {GPU_KIND: kind} if kind else {})


def part(name: str, count: int, gpus: float = 1, together: int = 1, apart: int = 1, **placement) -> Part:
    return Part(name, count, {"GPU": gpus}, PlacementConfig(**placement), together, f"{name}.count", apart=apart)


SIZES = st.sampled_from([1, 2, 4])
CLUSTERS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["", "H100", "L4"])), min_size=1, max_size=5)


@st.composite
def runs(draw, *, several: bool = False) -> list[Part]:
    together = draw(SIZES)
    kinds = st.sampled_from([None, None, "H100"])
    strategies = st.sampled_from(["pack", "spread"])
    limits = st.sampled_from([None, None, 4, 8])
    shapes = [("learner", together * draw(st.integers(1, 3)), 1, together, 1)]
    for i in range(draw(st.integers(0, 3))):
        apart = draw(st.sampled_from([1, 1, 2])) if several else 1
        shapes.append((f"pool_{i}", apart * draw(st.integers(1, 5)), draw(SIZES), 1, apart))
    return [
        part(name, count, gpus, group, apart, strategy=draw(strategies), per_node=draw(limits), gpu_kind=draw(kinds))
        for name, count, gpus, group, apart in shapes
    ]


@given(CLUSTERS, runs(several=True))
def test_no_node_is_given_more_than_it_has_or_what_it_may_not_have(cluster, parts):
    nodes = {str(i): node(str(i), gpus, kind=kind) for i, (gpus, kind) in enumerate(cluster)}
    try:
        placed = place(parts, tuple(nodes.values()), "0")
    except NoRoom:
        return
    taken: Counter[str] = Counter()
    for each in parts:
        where = placed[each.name]
        assert len(where) == each.count
        for name, here in Counter(where).items():
            taken[name] += here * each.each["GPU"]
            assert each.placement.per_node is None or here <= each.placement.per_node
            assert each.placement.gpu_kind is None or nodes[name].labels.get(GPU_KIND) == each.placement.gpu_kind
        groups = [where[at : at + each.together] for at in range(0, each.count, each.together)]
        assert all(len(set(group)) == 1 for group in groups), "ranks that belong together are on one node"
        engines = [where[at : at + each.apart] for at in range(0, each.count, each.apart)]
        assert all(len(set(engine)) == each.apart for engine in engines), "an engine is on as many nodes as it should be"
    assert all(amount <= nodes[name].has["GPU"] for name, amount in taken.items())


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), runs())
def test_a_run_is_refused_only_if_there_is_no_room(cluster, parts):
    """With sizes that divide each other, larger ones first, it does not matter where each goes: what fits can be counted."""
    anywhere = [
        Part(each.name, each.count, each.each, PlacementConfig(each.placement.strategy), each.together, each.key)
        for each in parts
    ]
    units = sorted(
        (each.together * each.each["GPU"] for each in anywhere for _ in range(each.count // each.together)), reverse=True
    )
    fits, used = True, 0.0
    for size in units:
        fits &= sum(gpus // size for gpus in cluster) * size - used >= size
        used += size
    nodes = tuple(node(str(i), gpus) for i, gpus in enumerate(cluster))
    if fits:
        place(anywhere, nodes, "0")
    else:
        with pytest.raises(NoRoom):
            place(anywhere, nodes, "0")


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 20))
def test_packing_takes_as_few_nodes_as_possible_and_spreading_is_even(cluster, count):
    nodes = tuple(node(str(i), gpus) for i, gpus in enumerate(cluster))
    if sum(cluster) < count:
        return
    packed = Counter(place([part("a", count)], nodes, "0")["a"])
    largest = sorted(cluster, reverse=True)
    assert sum(largest[: len(packed) - 1]) < count, "one node less would not do"
    spread = Counter(place([part("a", count, strategy="spread")], nodes, "0")["a"])
    for one, gpus in zip(nodes, cluster, strict=True):
        assert spread[one.id] == gpus or spread[one.id] >= max(spread.values()) - 1, "a node has fewer only if it is full"


def test_a_run_that_fits_one_node_stays_with_its_driver():
    nodes = tuple(node(name, 8) for name in "abc")
    placed = place([part("learner", 4, together=2), part("generators", 4)], nodes, "b")
    assert {*placed["learner"], *placed["generators"]} == {"b"}
    placed = place([part("learner", 4, together=2), part("generators", 6)], nodes, "b")
    assert placed["learner"] == ["b"] * 4
    assert len(set(placed["generators"])) == 1


def test_engines_stay_where_the_run_is_already_and_ranks_are_neighbours():
    nodes = (node("a", 0), node("b", 3), node("c", 3))
    placed = place([part("learner", 2), part("generators", 1)], nodes, "a")
    assert len({*placed["learner"], *placed["generators"]}) == 1
    spread = place([part("learner", 6, strategy="spread")], nodes, "a")["learner"]
    assert spread == ["b"] * 3 + ["c"] * 3


def test_a_part_that_few_nodes_can_take_is_placed_first():
    nodes = (node("h", 2, kind="H100"), node("l", 2, kind="L4"))
    placed = place([part("learner", 2), part("generators", 2, gpu_kind="H100")], nodes, "h")
    assert placed == {"learner": ["l", "l"], "generators": ["h", "h"]}


def test_another_order_is_tried_before_a_run_is_refused():
    """Taken first, the two that need an H100 would go where the large one has to."""
    nodes = (node("a", 4, kind="H100"), node("b", 5, kind="H100"), node("c", 3))
    parts = [part("learner", 2, 4), part("generators", 1, gpu_kind="H100")]
    placed = place(parts, nodes, "c")
    assert sorted(placed["learner"]) == ["a", "b"]
    assert placed["generators"] == ["b"]


def test_a_refusal_says_what_is_needed_what_there_is_and_what_would_help():
    nodes = (*(node(f"10.0.0.{i}", 8, free=2) for i in range(3)), node("10.0.0.9", 0))
    with pytest.raises(NoRoom) as caught:
        place([part("learner", 2, together=2), part("generators", 4, 2)], nodes, "10.0.0.9", remedies=("add nodes",))
    assert str(caught.value) == (
        "generators.count: there is no room for 2 of 4 processes of generators, each of which takes 2 GPU. The run needs "
        "2 x 1 GPU (learner) + 4 x 2 GPU (generators), and there is: 3 nodes, each with 8 GPU, of which 2 free; 10.0.0.9 with 0 "
        "GPU; lower generators.count to at most 2, or add nodes"
    )


def test_per_node_and_resources_of_ones_own():
    nodes = (node("a", 8, rack=4), node("b", 8), node("c", 8, rack=1))
    mine = Part(
        "generators", 4, {"GPU": 1, "rack": 1}, PlacementConfig(per_node=3, resources={"rack": 1}), key="generators.count"
    )
    assert Counter(place([mine], nodes, "b")["generators"]) == {"a": 3, "c": 1}
    with pytest.raises(NoRoom, match=r"1 of 5 .* at most 3 on a node") as caught:
        place([Part("generators", 5, mine.each, mine.placement, key="generators.count")], nodes, "b")
    assert "raise generators.placement.per_node" in caught.value.remedy


def test_a_part_goes_to_nodes_that_have_its_labels():
    nodes = (node("a", 4), Node("b", "b", {"GPU": 4}, {"GPU": 4}, {"role": "inference", "zone": "1"}))
    placed = place([part("learner", 2), part("generators", 2, labels={"role": "inference"})], nodes, "a")
    assert placed == {"learner": ["a", "a"], "generators": ["b", "b"]}
    with pytest.raises(NoRoom, match="on nodes with label role=training") as caught:
        place([part("generators", 2, labels={"role": "training"})], nodes, "a")
    assert "a with 4 GPU; b with 4 GPU (role=inference)" in caught.value.problem
    assert "leave out generators.placement.labels" in caught.value.remedy


@pytest.mark.parametrize(("gpus", "named"), [(2, True), (0, False)])
def test_fewer_ranks_are_a_remedy_where_there_is_room_for_some(gpus: int, named: bool):
    with pytest.raises(NoRoom) as caught:
        place([part("learner", 4, gpu_kind="H100")], [node("a", gpus, kind="H100")], "a")
    assert ("use fewer learner ranks" in caught.value.remedy) is named
    assert "leave out learner.placement.gpu_kind" in caught.value.remedy


def test_what_does_not_fit_keeps_nothing_else_from_its_node():
    nodes = (node("a", 2), node("b", 1))
    wanted = [part("learner", 1), part("generators", 4), msgspec.structs.replace(part("many", 2, 2), gang=True)]
    placed = place_what_fits(wanted, nodes, "a")
    assert (placed["learner"], placed["many"]) == (["b"], []), "of a gang all or none"
    placed = place_what_fits(wanted[:2], nodes, "a")
    assert placed == {"learner": ["a"], "generators": ["a", "b"]}


def test_what_others_had_taken_of_a_node_is_not_free():
    told = [node("a", 4, free=2)]
    seen = NodesSeen(lambda: Nodes(tuple(told), "a"))
    assert seen().alive[0].free["GPU"] == 2
    told[0] = node("a", 4, free=0)  # what this run has taken since
    assert seen().alive[0].free["GPU"] == 2
    told.append(node("b", 4, free=1))  # a new node, of which Ray has already given this run two
    assert seen(lambda name: {"GPU": 2} if name == "b" else {}).alive[1].free["GPU"] == 3


def test_an_engine_on_several_nodes_is_refused_on_one_machine():
    alone = [Part("generators", 2, {}, key="generators.count", apart=2)]
    with pytest.raises(NoRoom, match=r"generators, 2 of them on as many nodes\. There is: a; lower generators\.engine_nodes$"):
        place(alone, (node("a", 4),), "a")
