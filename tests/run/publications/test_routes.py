from pathlib import Path

import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.network import NetworkConfig, NoTlsConfig, RunTlsConfig
from asyncrl.core.recipe.schema import ModelConfig, Recipe
from asyncrl.core.recipe.weights import (
    AutoWeightsConfig,
    DiskWeightsConfig,
    NcclWeightsConfig,
    ShmWeightsConfig,
    TcpWeightsConfig,
    WeightsConfig,
)
from asyncrl.run.publications.routes import by_nccl, describe_room, describe_routes, writers

RUN = Path("/runs/r")
NO_TLS = NoTlsConfig()


def test_engines_beside_all_ranks_share_their_memory() -> None:
    said = describe_routes(AutoWeightsConfig(), ["a"], {"a": 2}, RUN)
    assert said == "shm to 2 engines on the learner's node, whose memory they share"
    assert describe_routes(ShmWeightsConfig(), ["a"], {"a": 2}, RUN) == said


def test_other_nodes_are_reached_by_tcp() -> None:
    said = describe_routes(AutoWeightsConfig(), ["a"], {"a": 1, "b": 2, "c": 1}, RUN)
    assert said.startswith("shm to 1 engine on the learner's node")
    assert said.endswith("tcp to 3 engines on 2 nodes where no rank writes, once to each")


def test_where_ranks_are_on_several_nodes_each_engine_needs_bytes_of_another() -> None:
    beside, apart = describe_routes(AutoWeightsConfig(), ["a", "b"], {"a": 1, "b": 1, "c": 1}, RUN).split("; ")
    assert beside.startswith("shm from ranks beside them, and tcp from those on other nodes, to 2 engines on 2 nodes")
    assert apart.startswith("tcp to 1 engine on 1 node")


def test_replicas_write_nothing_but_their_own_experts() -> None:
    assert writers(ParallelLayout(data=2), ["a", "b"]) == {"a"}
    assert writers(ParallelLayout(pipeline=2), ["a", "b"]) == {"a", "b"}
    assert writers(ParallelLayout(data=2, expert=2), ["a", "b"]) == {"a", "b"}


def test_memory_alone_is_refused_where_it_does_not_reach() -> None:
    with pytest.raises(RecipeError, match=r"weights.kind.*1 engine.*set it to auto"):
        describe_routes(ShmWeightsConfig(), ["a"], {"a": 1, "b": 1}, RUN)


def test_the_folder_is_told() -> None:
    near = describe_routes(DiskWeightsConfig(), ["a"], {"a": 1}, RUN)
    assert near.startswith("shm to 1 engine")
    assert near.endswith("disk for engines that come elsewhere, through /runs/r/weights, since the recipe asks for it")
    far = describe_routes(DiskWeightsConfig("/shared", delta=True), ["a"], {"b": 1}, RUN)
    assert far.startswith("disk to 1 engine elsewhere, through /shared, as changed blocks")


def recipe(weights: WeightsConfig, tls: NoTlsConfig | RunTlsConfig = NO_TLS) -> Recipe:
    model, environment = ModelConfig(path="m"), ClassEnvironmentConfig(name="calculator")
    return Recipe(name="r", steps=1, model=model, environment=environment, weights=weights, network=NetworkConfig(tls=tls))


def test_gpus_on_other_nodes_are_reached_by_nccl_which_cannot_encrypt() -> None:
    assert by_nccl(recipe(AutoWeightsConfig()), on_gpus=True)
    assert not by_nccl(recipe(AutoWeightsConfig()), on_gpus=False)
    assert not by_nccl(recipe(TcpWeightsConfig()), on_gpus=True)
    assert not by_nccl(recipe(AutoWeightsConfig(), RunTlsConfig()), on_gpus=True)
    said = describe_routes(AutoWeightsConfig(), ["a"], {"a": 1, "b": 2}, RUN, nccl=True)
    assert said.startswith("shm to 1 engine on the learner's node")
    assert said.endswith("nccl to 2 engines on 1 node away from a rank, from GPU to GPU")
    assert "tcp to 1 engine" in describe_routes(TcpWeightsConfig(), ["a"], {"b": 1}, RUN)


def test_nccl_is_refused_where_it_cannot_be() -> None:
    with pytest.raises(RecipeError, match=r"weights.kind.*between GPUs, and learner and engines have none here; set it to auto"):
        by_nccl(recipe(NcclWeightsConfig()), on_gpus=False)
    with pytest.raises(RecipeError, match=r"weights.kind.*does not encrypt.*network.tls"):
        by_nccl(recipe(NcclWeightsConfig(), RunTlsConfig()), on_gpus=True)
    assert by_nccl(recipe(NcclWeightsConfig()), on_gpus=True)
    said = describe_routes(NcclWeightsConfig(), ["a"], {"a": 1, "b": 1}, RUN, nccl=True)
    assert said == "nccl to 2 engines, from GPU to GPU, since the recipe asks for it"


def test_a_plan_tells_whether_engines_pause_while_nccl_brings_a_version() -> None:
    asked = recipe(NcclWeightsConfig())  # generators.gpu_memory_share 0.85
    assert "arrives while engines sample, in 3.0 GiB" in describe_room(asked, 3 << 30, 80 << 30)
    assert "engines pause while a version arrives: 12.0 GiB do not fit" in describe_room(asked, 12 << 30, 80 << 30)
    assert "whose GPU has no room for 3.0 GiB" in describe_room(asked, 3 << 30, 0)
