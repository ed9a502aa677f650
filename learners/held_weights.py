"""Which rectangle of each Hugging Face tensor a learner rank holds, and which of them it publishes.

It follows from the architecture and the rank's place alone. Loading and publishing use it on each rank, and a plan uses it before
there is any rank. What always holds: a rank has at most one rectangle of each tensor, and the rectangles that all ranks publish
cover every tensor exactly once. Ranks that hold the same share out what they publish, in parts as equal as whole layers allow, so
that they write side by side. Each expert has tensors of its own, as in Qwen's own folders.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from asyncrl.core.architectures.architecture import EMBEDDING, Architecture, ModelTensor, divided_dimension
from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.core.rectangle import Rectangle
from asyncrl.learners.rank import RankPlace


class Held(NamedTuple):
    """What a rank holds of one tensor.

    Attributes:
        shape: the shape of the whole tensor.
        rectangle: the part that the rank holds.
        published: whether the rank's copy is the one that is published.
    """

    shape: tuple[int, ...]
    rectangle: Rectangle
    published: bool


def held_weights(architecture: Architecture, place: RankPlace) -> Iterator[Held]:
    """Yield what the rank at ``place`` holds. The layout must divide the architecture; see
    :func:`asyncrl.core.recipe.rules.model.check_layout`."""
    dense, of_experts = _Turns(place.replicas, place.replica), _Turns(place.expert_replicas, place.expert_replica)
    for tensor in architecture.tensors():
        if (tensor.expert is not None and not _has_expert(architecture, place, tensor.expert)) or not _on_stage(
            architecture, place, tensor
        ):
            continue
        ranks, rank, turns = place.layout.tensor, place.tensor_rank, dense
        if tensor.expert is not None:
            ranks, rank, turns = place.layout.expert_tensor, place.expert_tensor_rank, of_experts
        split = divided_dimension(tensor.name)
        extent = tuple(size // ranks if axis == split else size for axis, size in enumerate(tensor.shape))
        start = tuple(size * rank if axis == split else 0 for axis, size in enumerate(extent))
        copied = tensor.name == EMBEDDING and place.pipeline_rank > 0
        published = (split is not None or rank == 0) and not copied and turns.is_mine(tensor, math.prod(extent))
        yield Held(tensor.shape, Rectangle(tensor.name, start, extent), published)


class _Turns:
    """Whose turn it is, among ranks that hold the same, to publish a layer: that of the one with the fewest elements so far.

    Args:
        replicas: how many ranks hold the same.
        replica: which of them this one is.
    """

    def __init__(self, replicas: int, replica: int) -> None:
        self._elements, self._replica = [0] * replicas, replica
        self._publisher: dict[int | str, int] = {}

    def is_mine(self, tensor: ModelTensor, elements: int) -> bool:
        """Whether this rank publishes ``tensor``, of which each has so many elements. It is asked of each tensor in order."""
        unit: int | str = tensor.name if tensor.layer is None else tensor.layer
        least = self._elements.index(min(self._elements))
        publisher = self._publisher.setdefault(unit, least)
        self._elements[publisher] += elements
        return publisher == self._replica


def _has_expert(architecture: Architecture, place: RankPlace, expert: int) -> bool:
    """Whether the rank has this expert, if it has the layer: neighbouring experts are on one rank."""
    return expert // (architecture.experts // place.layout.expert) == place.expert_rank


def _on_stage(architecture: Architecture, place: RankPlace, tensor: ModelTensor) -> bool:
    layout, last = place.layout, place.layout.pipeline - 1
    if tensor.layer is not None:
        return stage_of(architecture.layers, tensor.layer, layout) == place.pipeline_rank
    if tensor.name == EMBEDDING:
        # In a tied model, the output layer is the last stage's copy of the embedding, which the first stage holds.
        return place.pipeline_rank == 0 or (architecture.tied and place.pipeline_rank == last)
    return place.pipeline_rank == last


def stage_of(layers: int, layer: int, layout: ParallelLayout) -> int:
    """The pipeline stage that holds ``layer``: chunks of neighbouring layers go round the stages."""
    return layer // (layers // (layout.pipeline * layout.virtual_pipeline)) % layout.pipeline
