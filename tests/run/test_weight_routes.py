from pathlib import Path

import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.core.recipe.weights import AutoWeights, DiskWeights, ShmWeights
from asyncrl.run.weight_routes import describe_routes, writers

RUN = Path("/runs/r")


def test_engines_beside_all_ranks_share_their_memory() -> None:
    said = describe_routes(AutoWeights(), ["a"], {"a": 2}, RUN)
    assert said == "shm to 2 engines on the learner's node, whose memory they share"
    assert describe_routes(ShmWeights(), ["a"], {"a": 2}, RUN) == said


def test_other_nodes_are_reached_by_tcp() -> None:
    said = describe_routes(AutoWeights(), ["a"], {"a": 1, "b": 2, "c": 1}, RUN)
    assert said.startswith("shm to 1 engine on the learner's node")
    assert said.endswith("tcp to 3 engines on 2 nodes where no rank writes, once to each")


def test_where_ranks_are_on_several_nodes_each_engine_needs_bytes_of_another() -> None:
    beside, apart = describe_routes(AutoWeights(), ["a", "b"], {"a": 1, "b": 1, "c": 1}, RUN).split("; ")
    assert beside.startswith("shm from ranks beside them, and tcp from those on other nodes, to 2 engines on 2 nodes")
    assert apart.startswith("tcp to 1 engine on 1 node")


def test_replicas_write_nothing_but_their_own_experts() -> None:
    assert writers(ParallelLayout(data=2), ["a", "b"]) == {"a"}
    assert writers(ParallelLayout(pipeline=2), ["a", "b"]) == {"a", "b"}
    assert writers(ParallelLayout(data=2, expert=2), ["a", "b"]) == {"a", "b"}


def test_memory_alone_is_refused_where_it_does_not_reach() -> None:
    with pytest.raises(RecipeError, match=r"weights.kind.*1 engine.*set it to auto"):
        describe_routes(ShmWeights(), ["a"], {"a": 1, "b": 1}, RUN)


def test_the_folder_is_told() -> None:
    near = describe_routes(DiskWeights(), ["a"], {"a": 1}, RUN)
    assert near.startswith("shm to 1 engine")
    assert near.endswith("disk for engines that come elsewhere, through /runs/r/weights, since the recipe asks for it")
    far = describe_routes(DiskWeights("/shared", delta=True), ["a"], {"b": 1}, RUN)
    assert far.startswith("disk to 1 engine elsewhere, through /shared, as changed blocks")
