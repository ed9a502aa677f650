"""Processes of a run on two nodes, which are two Ray nodes on this machine."""

import asyncio
import io
import os

import pytest
import ray
from ray.util.placement_group import placement_group_table
from ray_actors import NodesHere
from rich.console import Console

from asyncrl.run.dry_run.plan import make_plan
from asyncrl.run.dry_run.plan_view import plan_view
from asyncrl.run.nodes.cluster_nodes import NodesSeen, read_nodes
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.nodes.placed_processes import find_places
from asyncrl.run.nodes.placement import NoRoom
from asyncrl.run.nodes.process_kinds import LEARNER, parts_of
from asyncrl.run.nodes.remote_files import RemoteNodeFiles
from asyncrl.run.recipe.compose import compose_for

GIB = 1 << 30
OVERRIDES = ["learner.data_parallel=2", "generators.count=2", "generators.placement.strategy=spread"]
POOL = "generators.pools={evaluation: {count: 1, role: evaluation, placement: {resources: {far: 1}}}}"


@pytest.fixture(scope="module")
def cluster():
    """Two nodes: the driver's with 3 CPUs, and another one with 4, which alone has the resource ``far``."""
    with pytest.MonkeyPatch.context() as patch:
        made = NodesHere()
        made.add_node(num_cpus=3, memory=20 * GIB, object_store_memory=80 << 20, include_dashboard=False)
        made.add_node(num_cpus=4, memory=20 * GIB, object_store_memory=80 << 20, resources={"far": 1})
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
        if ray.is_initialized():
            ray.shutdown()
        made.shutdown()


async def test_a_plan_and_a_run_put_every_process_on_the_same_nodes(cluster):
    machine = Machine.for_runs()
    assert not ray.is_initialized(), "the plan's own process has not joined"
    assert machine.cluster is not None
    assert (machine.cores, machine.gpus, len(machine.cluster.alive)) == (7, 0, 2)
    recipe, _ = compose_for(machine, "quickstart", [*OVERRIDES, POOL])
    plan = make_plan(recipe, machine)
    many, _ = compose_for(machine, "quickstart", ["generators.count=9", "learner.data_parallel=1"])
    with pytest.raises(NoRoom, match="of 9 processes of generators, each of which takes 1 CPU and") as caught:
        make_plan(many, machine)
    assert "with 3 CPU and 20.0 GiB of memory" in caught.value.problem
    assert "lower generators.count to at most 6, or add nodes" in caught.value.remedy

    near, far = machine.cluster.driver, next(node.id for node in machine.cluster.alive if node.id != machine.cluster.driver)
    assert plan.placed[LEARNER] in ([near] * 2, [far] * 2)
    assert sorted(plan.placed["generators"]) == sorted([near, far])
    assert plan.placed["evaluation"] == [far]
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(plan_view(plan, recipe))
    shown = console.export_text()
    assert "1 of evaluation" in shown
    seen = {"current folder": (), "run folder": (), "model": ()}
    assert {folder.name: folder.blind for folder in plan.folders} == seen, "one machine has both nodes"
    assert "shm from ranks beside them" in shown or "object store to" in shown

    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
    sizes = {process.part: process.each_bytes for process in plan.processes if process.part}
    notes: list[str] = []
    places = await find_places(recipe, parts_of, NodesSeen(read_nodes), sizes, notes.append)
    assert notes == [], "nothing is missing"
    for part, nodes in plan.placed.items():
        taken = [places.take(f"{part} {number}", part) for number in range(len(nodes))]
        assert sorted(each.node for each in taken) == sorted(nodes)
        actors = [RemoteNodeFiles.options(**each.options).remote() for each in taken]
        there = [
            ray.get(actor.__ray_call__.remote(lambda actor: ray.get_runtime_context().get_node_id()), timeout=200)
            for actor in actors
        ]
        assert there == [each.node for each in taken]
        if part == "evaluation":
            with pytest.raises(NoRoom, match="no room for 1 of 1 processes of evaluation"):
                await places.add(part, 1, False, notes.append)
            waiting = asyncio.create_task(places.add(part, 1, True, lambda no_room: notes.append(str(no_room))))
            async with asyncio.timeout(200):
                while not notes:  # noqa: ASYNC110 - no event tells of it
                    await asyncio.sleep(0.1)
            assert "no room for 1 of 1 processes of evaluation" in notes[0]
            assert {state["state"] for state in placement_group_table().values()} == {"CREATED", "PENDING"}
            ray.kill(actors[0])
            places.leave("evaluation 0")
            async with asyncio.timeout(200):
                await waiting
            assert places.take("evaluation 1", part).node == far
    places.close()
