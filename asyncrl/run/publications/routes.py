"""The ways of publications through a run, from the nodes of the learner's ranks to those of the engines."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.text import pluralize
from learners.rank import RankPlace


class GpuRoom(NamedTuple):
    """What must fit on an engine's GPU: bytes of a version, and bytes of the GPU's memory, 0 if not known."""

    version: int
    gpu: int


class Routes:
    """Where the publications of a run come from and go to.

    Args:
        ranks_on: the nodes of the learner's ranks that write publications: see :func:`writers`.
        engines_on: how many engines are on each node.

    Attributes:
        folder: the run's folder.
        on_gpus: learner and engines compute on GPUs.
        room: for a plan that says whether a version fits beside the weights in use; None where that is not asked.
        engines: how many there are.
        near: how many engines are on the node that all ranks write on. They map the ranks' files, and have nothing to fetch.
        beside: how many are on each node that some ranks write on, others elsewhere.
        apart: how many are on each node that no rank writes on.
    """

    def __init__(
        self,
        recipe: Recipe,
        ranks_on: Collection[str],
        engines_on: Mapping[str, int],
        folder: Path,
        *,
        on_gpus: bool,
        room: GpuRoom | None = None,
    ) -> None:
        self.recipe, self.folder, self.on_gpus, self.room = recipe, folder, on_gpus, room
        only = set(ranks_on) if len(set(ranks_on)) == 1 else set()
        self.engines = sum(engines_on.values())
        self.near = sum(count for node, count in engines_on.items() if node in only)
        self.beside = {node: count for node, count in engines_on.items() if node in ranks_on and node not in only}
        self.apart = {node: count for node, count in engines_on.items() if node not in ranks_on}

    @cached_property
    def far(self) -> dict[str, int]:
        """How many engines are on each node that something must be brought to."""
        return self.beside | self.apart

    @property
    def through_memory(self) -> list[str]:
        """How the engines that are near get weights, whatever the transport; empty if none is."""
        engines = pluralize(self.near, "engine")
        return [f"shm to {engines} on the learner's node, whose memory they share"] if self.near else []


def writers(layout: ParallelLayout, nodes: Sequence[str]) -> set[str]:
    """Return the nodes on which ranks write publications; ranks that hold copies of others' weights alone write nothing.

    Args:
        nodes: the node of each of the learner's ranks, in their order.
    """
    places = [RankPlace(rank=rank, layout=layout) for rank in range(layout.ranks)]
    return {nodes[place.rank] for place in places if place.is_first_replica or place.is_first_expert_replica}


def on_nodes(engines_on: Mapping[str, int]) -> str:
    """Say how many engines are on how many nodes."""
    return f"{pluralize(sum(engines_on.values()), 'engine')} on {pluralize(len(engines_on), 'node')}"
