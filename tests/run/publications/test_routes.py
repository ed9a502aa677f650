from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.core.recipe.network import NetworkConfig, NoTlsConfig, RunTlsConfig
from asyncrl.core.recipe.schema import ModelConfig, Recipe
from asyncrl.core.recipe.weights import (
    AutoWeightsConfig,
    DiskWeightsConfig,
    NcclWeightsConfig,
    RayWeightsConfig,
    ShmWeightsConfig,
    WeightsConfig,
)
from asyncrl.run.dry_run.weight_routes import full_nodes
from asyncrl.run.publications.disk_transport import DiskTransport
from asyncrl.run.publications.nccl_transport import NcclTransport
from asyncrl.run.publications.ray_transport import RayTransport
from asyncrl.run.publications.transport import ObjectStore, Room, Routes
from asyncrl.run.publications.transports import TRANSPORTS, transport_of

RUN = Path("/runs/r")
NO_TLS = NoTlsConfig()


def recipe(weights: WeightsConfig, tls: NoTlsConfig | RunTlsConfig = NO_TLS) -> Recipe:
    model, environment = ModelConfig(path="m"), ClassEnvironmentConfig(name="calculator")
    return Recipe(name="r", steps=1, model=model, environment=environment, weights=weights, network=NetworkConfig(tls=tls))


def describe(
    weights: WeightsConfig,
    ranks_on: Sequence[str],
    engines_on: Mapping[str, int],
    tls: NoTlsConfig | RunTlsConfig = NO_TLS,
    *,
    on_gpus: bool = False,
    room: Room | None = None,
) -> str:
    asked = recipe(weights, tls)
    return transport_of(asked, on_gpus=on_gpus).describe(Routes(asked, ranks_on, engines_on, RUN, on_gpus=on_gpus, room=room))


def test_engines_beside_all_ranks_share_their_memory() -> None:
    said = describe(AutoWeightsConfig(), ["a"], {"a": 2})
    assert said == "shm to 2 engines on the learner's node, whose memory they share"
    assert describe(ShmWeightsConfig(), ["a"], {"a": 2}) == said


def test_other_nodes_are_reached_through_rays_object_store() -> None:
    said = describe(AutoWeightsConfig(), ["a"], {"a": 1, "b": 2, "c": 1})
    assert said.startswith("shm to 1 engine on the learner's node")
    assert said.endswith("Ray's object store to 3 engines on 2 nodes where no rank writes, once to each")


@pytest.mark.parametrize(
    ("ranks_on", "engines_on", "refused"),
    [
        (["a"], {"b": 1}, "10.0.0.1 has 1.2 GiB, and 2 versions .*, at most 80% of it, take 2.5 GiB; start Ray .*=2684354560"),
        (["a", "c", "c"], {"b": 1}, "10.0.0.3 has 1.5 GiB, and 2 versions .* take 1.7 GiB"),
        (["a", "c"], {"b": 1}, None),
        (["a"], {"a": 1}, None),
        (["unknown"], {"b": 1}, None),
    ],
)
def test_an_object_store_that_cannot_hold_two_versions_is_refused_if_it_is_needed(
    ranks_on: Sequence[str], engines_on: Mapping[str, int], refused: str | None
) -> None:
    stores = {"a": ObjectStore("10.0.0.1", 5 << 28), "b": ObjectStore("10.0.0.2", 1), "c": ObjectStore("10.0.0.3", 3 << 29)}
    with nullcontext() if refused is None else pytest.raises(RecipeError, match=f"weights.kind: Ray's object store on {refused}"):
        describe(AutoWeightsConfig(), ranks_on, engines_on, room=Room(1 << 30, 0, stores))


def test_where_ranks_are_on_several_nodes_each_engine_needs_bytes_of_another() -> None:
    beside, apart = describe(AutoWeightsConfig(), ["a", "b"], {"a": 1, "b": 1, "c": 1}).split("; ")
    assert beside.startswith(
        "shm from ranks beside them, and Ray's object store from those on other nodes, to 2 engines on 2 nodes"
    )
    assert apart.startswith("Ray's object store to 1 engine on 1 node")


def test_an_engine_on_several_nodes_is_not_counted_on_each_as_a_whole() -> None:
    two = msgspec.structs.replace(recipe(AutoWeightsConfig()), generators=GeneratorsConfig(tensor_parallel=2, engine_nodes=2))
    said = RayTransport.describe(Routes(two, ["a"], {"a": 1, "b": 1}, RUN, on_gpus=False))
    assert said.startswith("shm to 1 engine part on the learner's node")
    assert said.endswith("Ray's object store to 1 engine part on 1 node where no rank writes, once to each")


def test_a_node_with_too_little_memory_for_new_weights_is_told_of() -> None:
    room = Room(1 << 30, 0, {"b": ObjectStore("10.0.0.2", 1 << 29), "c": ObjectStore("10.0.0.3", 1 << 29)})
    routes = Routes(recipe(AutoWeightsConfig()), ["a"], {"a": 1, "b": 1, "c": 1}, RUN, on_gpus=False, room=room)
    free = {"b": 9 << 28, "c": 10 << 28}
    (told,) = full_nodes(RayTransport, routes, free)
    assert told.startswith("/dev/shm on 10.0.0.2 has 2.2 GiB free, and new weights take up to 2.5 GiB there")
    assert list(full_nodes(DiskTransport, routes, free)) == list(full_nodes(NcclTransport, routes, {"b": 0})) == []


def test_memory_alone_is_refused_where_it_does_not_reach() -> None:
    with pytest.raises(RecipeError, match=r"weights.kind.*1 engine.*set it to auto"):
        describe(ShmWeightsConfig(), ["a"], {"a": 1, "b": 1})


def test_the_folder_is_named() -> None:
    near = describe(DiskWeightsConfig(), ["a"], {"a": 1})
    assert near.startswith("shm to 1 engine")
    assert near.endswith("disk for engines that come elsewhere, through /runs/r/weights, since the recipe asks for it")
    far = describe(DiskWeightsConfig(folder="/shared", delta=True), ["a"], {"b": 1})
    assert far.startswith("disk to 1 engine elsewhere, through /shared, as changed blocks")


def test_every_kind_has_its_transport_and_auto_takes_that_of_another() -> None:
    kinds = {AutoWeightsConfig, *TRANSPORTS}
    assert kinds == set(get_args(WeightsConfig))
    assert all(transport_of(recipe(kind()), on_gpus=False) is transport for kind, transport in TRANSPORTS.items())


def test_gpus_on_other_nodes_are_reached_by_nccl_which_cannot_encrypt() -> None:
    assert transport_of(recipe(AutoWeightsConfig()), on_gpus=True) is NcclTransport
    assert transport_of(recipe(AutoWeightsConfig()), on_gpus=False) is RayTransport
    assert transport_of(recipe(RayWeightsConfig()), on_gpus=True) is RayTransport
    assert transport_of(recipe(AutoWeightsConfig(), RunTlsConfig()), on_gpus=True) is RayTransport
    said = describe(AutoWeightsConfig(), ["a"], {"a": 1, "b": 2}, on_gpus=True)
    assert said.startswith("shm to 1 engine on the learner's node")
    assert said.endswith("nccl to 2 engines on 1 node away from a rank, from GPU to GPU")
    assert "object store to 1 engine" in describe(RayWeightsConfig(), ["a"], {"b": 1}, on_gpus=True)


def test_nccl_is_refused_where_it_cannot_be() -> None:
    with pytest.raises(RecipeError, match=r"weights.kind.*between GPUs, and learner and engines have none here; set it to auto"):
        describe(NcclWeightsConfig(), ["a"], {"a": 1})
    with pytest.raises(RecipeError, match=r"weights.kind.*does not encrypt.*network.tls"):
        describe(NcclWeightsConfig(), ["a"], {"a": 1}, RunTlsConfig(), on_gpus=True)
    said = describe(NcclWeightsConfig(), ["a"], {"a": 1, "b": 1}, on_gpus=True)
    assert said == "nccl to 2 engines, from GPU to GPU, since the recipe asks for it"


@pytest.mark.parametrize(
    ("version", "gpu", "expected"),
    [
        (3, 80, "; a version arrives while engines sample, in 3.0 GiB"),
        (12, 80, "; engines pause while a version arrives: 12.0 GiB do not fit"),
        (3, 0, "; an engine whose GPU has no room for 3.0 GiB"),
    ],
)
def test_a_plan_tells_whether_engines_pause_while_nccl_brings_a_version(version: int, gpu: int, expected: str) -> None:
    room = Room(version << 30, gpu << 30)  # generators.gpu_memory_share is 0.85
    assert expected in describe(NcclWeightsConfig(), ["a"], {"a": 1}, on_gpus=True, room=room)
    assert "while" not in describe(AutoWeightsConfig(), ["a"], {"a": 1}, on_gpus=True, room=room), "memory alone carries it"
