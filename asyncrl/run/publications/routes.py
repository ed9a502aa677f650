"""How new weights reach the engines of a run, and why: chosen from where the learner's ranks and the engines are."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from asyncrl.core.errors import RecipeError
from asyncrl.core.measures.units import memory
from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.core.publication import LEFT_FREE
from asyncrl.core.recipe.network import NoTlsConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.weights import AutoWeightsConfig, DiskWeightsConfig, NcclWeightsConfig, ShmWeightsConfig, WeightsConfig
from asyncrl.core.text import pluralize
from learners.rank import RankPlace


def writers(layout: ParallelLayout, nodes: Sequence[str]) -> set[str]:
    """Return the nodes on which ranks write publications; ranks that hold copies of others' weights alone write nothing.

    Args:
        nodes: the node of each of the learner's ranks, in their order.
    """
    places = [RankPlace(rank=rank, layout=layout) for rank in range(layout.ranks)]
    return {nodes[place.rank] for place in places if place.is_first_replica or place.is_first_expert_replica}


def by_nccl(recipe: Recipe, *, on_gpus: bool) -> bool:
    """Whether NCCL carries weights to those engines of a run that do not share the memory of all ranks, or to all of them.

    Args:
        on_gpus: learner and engines compute on GPUs.

    Raises:
        RecipeError: the recipe asks for NCCL, and it cannot be used.
    """
    encrypted = not isinstance(recipe.network.tls, NoTlsConfig)
    if isinstance(recipe.weights, NcclWeightsConfig):
        if not on_gpus:
            problem = "NCCL carries weights between GPUs, and learner and engines have none here"
            raise RecipeError("weights.kind", problem, "set it to auto, which takes memory within a node and TCP between nodes")
        if encrypted:
            problem = "NCCL does not encrypt what it sends, and network.tls asks for that"
            raise RecipeError("weights.kind", problem, "set it to auto or tcp, or leave network.tls out if the network is yours")
        return True
    return isinstance(recipe.weights, AutoWeightsConfig) and on_gpus and not encrypted


def describe_routes(
    weights: WeightsConfig, ranks_on: Collection[str], engines_on: Mapping[str, int], folder: Path, *, nccl: bool = False
) -> str:
    """Say how weights reach the engines, in a few words each with its reason.

    Args:
        ranks_on: the nodes of the learner's ranks that write publications: see :func:`writers`.
        engines_on: how many engines are on each node.
        folder: of the run.
        nccl: what :func:`by_nccl` returned.

    Raises:
        RecipeError: the recipe asks for the memory of one node, and the run spans several.
    """
    if isinstance(weights, NcclWeightsConfig):
        return f"nccl to {pluralize(sum(engines_on.values()), 'engine')}, from GPU to GPU, since the recipe asks for it"
    # An engine beside a rank maps that rank's files, and has no more to fetch if no rank is elsewhere.
    near = sum(count for node, count in engines_on.items() if set(ranks_on) == {node})
    beside = {node: count for node, count in engines_on.items() if node in ranks_on and set(ranks_on) != {node}}
    apart = {node: count for node, count in engines_on.items() if node not in ranks_on}
    far = beside | apart
    if isinstance(weights, ShmWeightsConfig) and far:
        nodes = "engines and learner ranks are on different nodes"
        raise RecipeError(
            "weights.kind",
            f"shm reaches engines on the node of all learner ranks alone, and {nodes} ({pluralize(sum(far.values()), 'engine')})",
            "set it to auto, which goes by network there, or to disk; or have placement.strategy pack everything onto one node",
        )
    said = []
    if near:
        said.append(f"shm to {pluralize(near, 'engine')} on the learner's node, whose memory they share")
    if isinstance(weights, DiskWeightsConfig):
        how = ", as changed blocks where that is less" if weights.delta else ""
        others = f"to {pluralize(sum(far.values()), 'engine')} elsewhere" if far else "for engines that come elsewhere"
        said.append(f"disk {others}, through {stored_in(weights, folder)}{how}, since the recipe asks for it")
    elif nccl and far:
        engines, nodes = pluralize(sum(far.values()), "engine"), pluralize(len(far), "node")
        said.append(f"nccl to {engines} on {nodes} away from a rank, from GPU to GPU")
    else:
        if beside:
            said.append(f"shm from ranks beside them, and tcp from those on other nodes, to {_on_nodes(beside)}, once to each")
        if apart:
            said.append(f"tcp to {_on_nodes(apart)} where no rank writes, once to each")
    return "; ".join(said)


def _on_nodes(engines_on: Mapping[str, int]) -> str:
    return f"{pluralize(sum(engines_on.values()), 'engine')} on {pluralize(len(engines_on), 'node')}"


def describe_room(recipe: Recipe, size: int, gpu_memory: int) -> str:
    """Say whether engines pause while NCCL brings them a version.

    Args:
        size: bytes of a version.
        gpu_memory: bytes of an engine's GPU; 0 if not known.
    """
    share = max(pool.gpu_memory_share for pool in recipe.generators.by_pool.values())
    left = f"generators.gpu_memory_share {share:g} leaves {memory(int(gpu_memory * (1 - share)))}"
    if not gpu_memory:
        return f"an engine whose GPU has no room for {memory(size)} beside the weights in use pauses while a version arrives"
    if size + LEFT_FREE <= gpu_memory * (1 - share):
        return f"a version arrives while engines sample, in {memory(size)} beside the weights in use ({left})"
    return f"engines pause while a version arrives: {memory(size)} do not fit beside the weights in use ({left})"


def stored_in(weights: DiskWeightsConfig, folder: Path) -> Path:
    """The versioned folder of a run."""
    return folder / "weights" if weights.folder is None else Path(weights.folder).absolute()
