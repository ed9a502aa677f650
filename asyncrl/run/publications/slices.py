"""What each learner rank sends to each worker of an engine in a publication, as a plan shows it."""

import msgspec

from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.held_weights import held_weights
from asyncrl.learners.rank import RankPlace
from asyncrl.run.models.model_shape import ELEMENT_BYTES, ModelShape, engine_layout
from asyncrl.weights.vllm.engine_shards import padding, targets
from asyncrl.weights.vllm.slice_plan import Merge, merges, moved_elements, plan_slices


class WeightSlices(msgspec.Struct, frozen=True):
    """The slices of one publication, for one engine of a pool.

    Attributes:
        pools: the pools whose engines are divided in this way.
        moved: bytes from each learner rank (row) to each worker of the engine (column).
        padded: bytes of each worker's parameters that it fills by itself.
        merges: parameters that are not whole tensors of one rank.
    """

    pools: tuple[str, ...]
    moved: tuple[tuple[int, ...], ...]
    padded: tuple[int, ...]
    merges: tuple[Merge, ...]


def weight_slices(recipe: Recipe, shape: ModelShape) -> tuple[WeightSlices, ...]:
    """Plan the slices for each way in which engines of the recipe's pools are divided."""
    architecture, layout, size = shape.architecture, recipe.learner.layout, ELEMENT_BYTES[recipe.learner.dtype]
    shapes = {tensor.name: tensor.shape for tensor in architecture.tensors()}
    published = {
        rank: [held.rectangle for held in held_weights(architecture, RankPlace(rank=rank, layout=layout)) if held.published]
        for rank in range(layout.ranks)
    }
    found = []
    layouts = {name: engine_layout(pool) for name, pool in recipe.generators.by_pool.items()}
    for engine in dict.fromkeys(layouts.values()):
        workers = range(engine.workers)
        slices = plan_slices(published, [targets(architecture, engine, worker) for worker in workers])
        elements = moved_elements(slices)
        found.append(
            WeightSlices(
                pools=tuple(name for name, its in layouts.items() if its == engine),
                moved=tuple(tuple(size * elements[rank, worker] for worker in workers) for rank in range(layout.ranks)),
                padded=tuple(size * padding(architecture, engine, worker) for worker in workers),
                merges=tuple(merges(slices, shapes)),
            )
        )
    return tuple(found)
