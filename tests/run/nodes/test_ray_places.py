"""Ray places what a plan says fits: on four nodes of this machine, with GPUs that are made up."""

import asyncio
from collections import Counter

import pytest
import ray
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray_actors import NodesHere

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.placement import PlacementConfig
from asyncrl.run.nodes import placed_processes
from asyncrl.run.nodes.cluster_nodes import NodesSeen, read_nodes
from asyncrl.run.nodes.placed_processes import Places
from asyncrl.run.nodes.placement import GPU_KIND, NoRoom, Part, place
from asyncrl.run.nodes.placement_groups import Bundle, RayGroups

SIZES = st.sampled_from([1, 2, 4])


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        made = NodesHere()
        small = {"object_store_memory": 80 << 20, "num_cpus": 1}
        made.add_node(num_gpus=2, include_dashboard=False, **small)
        made.add_node(num_gpus=4, labels={GPU_KIND: "H100"}, **small)
        made.add_node(num_gpus=5, labels={GPU_KIND: "H100", "role": "inference"}, **small)
        made.add_node(num_gpus=1, **small)
        patch.setenv("RAY_ADDRESS", made.address)
        ray.init(address=made.address, log_to_driver=False)
        yield made
        ray.shutdown()
        made.shutdown()


@st.composite
def runs(draw: st.DrawFn) -> list[Part]:
    together = draw(st.sampled_from([1, 2]))
    shapes = [("learner", together * draw(st.integers(1, 3)), 1, together, True)]
    shapes += [(f"pool_{i}", draw(st.integers(1, 4)), draw(SIZES), 1, False) for i in range(draw(st.integers(0, 2)))]
    placements = st.builds(
        PlacementConfig,
        strategy=st.sampled_from(["pack", "spread"]),
        per_node=st.sampled_from([None, None, 2, 4]),
        gpu_kind=st.sampled_from([None, None, "H100"]),
        labels=st.sampled_from([{}, {}, {"role": "inference"}]),
    )
    return [
        Part(name, count, {"GPU": gpus}, draw(placements), group, f"{name}.count", gang)
        for name, count, gpus, group, gang in shapes
    ]


def refused(no_room: RecipeError) -> None:
    raise AssertionError(f"it waits: {no_room}")


async def free_again(seen: NodesSeen) -> None:
    """Wait until Ray has taken back what the groups of the test before had."""
    async with asyncio.timeout(120):
        while any(node.free.get("GPU", 0) != node.has.get("GPU", 0) for node in read_nodes().alive):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert len(seen().alive) == 4


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs())
def test_what_a_plan_says_fits_is_placed_on_the_nodes_that_it_names(cluster, parts):
    async def run() -> None:
        seen = NodesSeen(read_nodes)
        await free_again(seen)
        nodes = seen()
        try:
            planned = place(parts, nodes.alive, nodes.driver)
        except NoRoom:
            return
        places = Places(parts, seen, RayGroups())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(placed_processes, "WISH_S", 120.0)
            patch.setattr(placed_processes, "PATIENCE_S", 120.0)
            patch.setattr(placed_processes, "PLACING_S", 120.0)
            await places.find_all(refused)
        for part in parts:
            placed = [places.take(f"{part.name} {number}", part.name).node for number in range(part.count)]
            assert placed == planned[part.name]
        places.close()

    asyncio.run(run())


@pytest.mark.parametrize(("strategy", "per_node"), [("pack", None), ("spread", None), ("pack", 2)])
async def test_what_no_plan_can_place_now_is_placed_by_ray_when_there_is_room(cluster, monkeypatch, strategy, per_node):
    """Each engine is asked for by itself, and all of the learner at once; no node gets more than the parts allow."""
    monkeypatch.setattr(placed_processes, "PATIENCE_S", 0.0)
    monkeypatch.setattr(placed_processes, "WISH_S", 0.0)
    seen, told = NodesSeen(read_nodes), asyncio.Event()
    await free_again(seen)
    others = RayGroups().ask([Bundle({"GPU": size}, {}) for size in (2, 2, 3)], "PACK")
    async with asyncio.timeout(120):
        await others.placed()
    placement = PlacementConfig(strategy, per_node)
    parts = [Part("learner", 4, {"GPU": 1}, placement, 2, "", gang=True), Part("generators", 3, {"GPU": 1}, placement)]
    places = Places(parts, NodesSeen(read_nodes), RayGroups(), seconds=120)
    finding = asyncio.create_task(places.find_all(lambda no_room: told.set()))
    async with asyncio.timeout(120):
        await told.wait()
    others.remove()
    async with asyncio.timeout(120):
        await finding
    ranks = [places.take(f"rank {rank}", "learner").node for rank in range(4)]
    assert ranks[0] == ranks[1]
    assert ranks[2] == ranks[3]
    assert len(set(ranks)) == 2 or (strategy == "pack" and per_node is None)
    assert max(places.on_node_of({"generators"}).values()) <= (per_node or 3)
    assert sum(Counter(places.on_node).values()) == 7
    places.close()
