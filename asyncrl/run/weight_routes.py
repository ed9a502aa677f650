"""How new weights reach the engines of a run, and why: chosen from where the learner's ranks and the engines are."""

from collections.abc import Collection, Mapping
from pathlib import Path

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.weights import AutoWeights, DiskWeights, ShmWeights, WeightsConfig
from asyncrl.core.text import counted


def describe_routes(weights: WeightsConfig, ranks_on: Collection[str], engines_on: Mapping[str, int], folder: Path) -> str:
    """Say how weights reach the engines, in a few words each with its reason.

    Args:
        ranks_on: the nodes of the learner's ranks.
        engines_on: how many engines are on each node.
        folder: of the run.

    Raises:
        RecipeError: the recipe asks for the memory of one node, and the run spans several.
    """
    # An engine beside a rank maps that rank's files, and has no more to fetch if no rank is elsewhere.
    near = sum(count for node, count in engines_on.items() if set(ranks_on) == {node})
    far = {node: count for node, count in engines_on.items() if set(ranks_on) != {node}}
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
    elif far:
        said.append(
            f"tcp to {counted(sum(far.values()), 'engine')} on {counted(len(far), 'node')} apart from a rank, once to each"
        )
    return "; ".join(said)


def describe_routes_here(recipe: Recipe, joined: bool) -> str:
    """Say how weights will reach the engines of a run that is planned.

    Args:
        joined: the run joins a cluster, whose nodes are known at launch.
    """
    if joined and isinstance(recipe.weights, AutoWeights):
        return "shm to engines on the learner's node, tcp to those elsewhere: told at launch, when nodes are chosen"
    return describe_routes(recipe.weights, [""], {"": recipe.generators.engines}, Path("RUN"))


def stored_in(weights: DiskWeights, folder: Path) -> Path:
    """The versioned folder of a run."""
    return folder / "weights" if weights.folder is None else Path(weights.folder).absolute()
