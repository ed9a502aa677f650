"""Says what it costs to have ranks or workers of an engine that divide the same layers on several nodes."""

from collections.abc import Iterator, Sequence

from asyncrl.core.measures.units import memory
from asyncrl.core.recipe.generators import PIPELINE
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.models.model_shape import ELEMENT_BYTES, ModelShape

ROUND_TRIP_S = 1e-4
"""What one small exchange between two nodes of a cluster may take, in seconds: a common figure, not measured."""


def sent_between_nodes(recipe: Recipe, shape: ModelShape, ranks_on: Sequence[str]) -> str | None:
    """What it costs that tensor-parallel ranks are on several nodes; None if none are.

    Attention and feed-forward part of each layer gather the tokens three times and scatter sums of them twice, over forward and
    backward pass; each time a rank receives all tokens but its own (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).
    """
    learner, tensor = recipe.learner, recipe.learner.tensor_parallel
    groups = [ranks_on[first : first + tensor] for first in range(0, len(ranks_on), tensor)]
    if all(len(set(group)) == 1 for group in groups):
        return None
    tokens = learner.micro_batch_tokens // learner.context_parallel * (tensor - 1) // tensor
    layers = shape.num_hidden_layers // learner.pipeline_parallel
    received = 2 * 5 * layers * tokens * shape.hidden_size * ELEMENT_BYTES[learner.dtype]
    return (
        f"ranks that divide the same layers are on several nodes: each receives {memory(received)} in a full micro-batch, "
        f"{received * 8 / 1e11:.2g} s on a line of 100 Gbit/s; pipeline or data parallelism between nodes sends far less"
    )


def sent_in_engines(recipe: Recipe, shape: ModelShape) -> Iterator[str]:
    """Yield what it costs that engines of a pool are on several nodes.

    Attention and feed-forward part of each layer add up the outputs of all workers for each token (Shoeybi et al. 2019,
    arXiv:1909.08053, section 3). Where whole stages of layers are on each node, a token's channels pass from one to the next.
    """
    for name, pool in recipe.generators.by_pool.items():
        nodes = pool.engine_nodes
        if nodes == 1:
            continue
        staged = pool.engine.get(PIPELINE, 1) % nodes == 0
        waits = nodes - 1 if staged else 2 * shape.num_hidden_layers
        share = 1 if staged else 2 * (nodes - 1) / nodes
        received = waits * share * 1000 * shape.hidden_size * ELEMENT_BYTES[pool.dtype]
        yield (
            f"each engine of {name} is on {nodes} nodes: for 1,000 tokens, {memory(received)} come to each, and each step waits "
            f"{waits} times for the network, {waits * ROUND_TRIP_S * 1e3:.2g} ms if an exchange takes "
            f"{ROUND_TRIP_S * 1e3:g} ms; an engine that one node can hold is faster"
        )
