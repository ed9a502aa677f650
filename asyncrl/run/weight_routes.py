"""How new weights reach the engines of a run, and why: chosen from where the learner's ranks and the engines are."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from asyncrl.core.errors import RecipeError
from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.core.recipe.weights import DiskWeights, ShmWeights, WeightsConfig
from asyncrl.core.text import counted
from learners.rank import RankPlace


def writers(layout: ParallelLayout, nodes: Sequence[str]) -> set[str]:
    """Return the nodes on which ranks write publications; ranks that hold copies of others' weights alone write nothing.

    Args:
        nodes: the node of each of the learner's ranks, in their order.
    """
    places = [RankPlace(rank=rank, layout=layout) for rank in range(layout.ranks)]
    return {nodes[place.rank] for place in places if place.is_first_replica or place.is_first_expert_replica}


def describe_routes(weights: WeightsConfig, ranks_on: Collection[str], engines_on: Mapping[str, int], folder: Path) -> str:
    """Say how weights reach the engines, in a few words each with its reason.

    Args:
        ranks_on: the nodes of the learner's ranks that write publications: see :func:`writers`.
        engines_on: how many engines are on each node.
        folder: of the run.

    Raises:
        RecipeError: the recipe asks for the memory of one node, and the run spans several.
    """
    # An engine beside a rank maps that rank's files, and has no more to fetch if no rank is elsewhere.
    near = sum(count for node, count in engines_on.items() if set(ranks_on) == {node})
    beside = {node: count for node, count in engines_on.items() if node in ranks_on and set(ranks_on) != {node}}
    apart = {node: count for node, count in engines_on.items() if node not in ranks_on}
    far = beside | apart
    if isinstance(weights, ShmWeights) and far:
        nodes = "engines and learner ranks are on different nodes"
        raise RecipeError(
            "weights.kind",
            f"shm reaches engines on the node of all learner ranks alone, and {nodes} ({counted(sum(far.values()), 'engine')})",
            "set it to auto, which goes by TCP there, or to disk; or have placement.strategy pack everything onto one node",
        )
    said = []
    if near:
        said.append(f"shm to {counted(near, 'engine')} on the learner's node, whose memory they share")
    if isinstance(weights, DiskWeights):
        how = ", as changed blocks where that is less" if weights.delta else ""
        others = f"to {counted(sum(far.values()), 'engine')} elsewhere" if far else "for engines that come elsewhere"
        said.append(f"disk {others}, through {stored_in(weights, folder)}{how}, since the recipe asks for it")
    else:
        if beside:
            said.append(f"shm from ranks beside them, and tcp from those on other nodes, to {_on_nodes(beside)}, once to each")
        if apart:
            said.append(f"tcp to {_on_nodes(apart)} where no rank writes, once to each")
    return "; ".join(said)


def _on_nodes(engines_on: Mapping[str, int]) -> str:
    return f"{counted(sum(engines_on.values()), 'engine')} on {counted(len(engines_on), 'node')}"


def stored_in(weights: DiskWeights, folder: Path) -> Path:
    """The versioned folder of a run."""
    return folder / "weights" if weights.folder is None else Path(weights.folder).absolute()
