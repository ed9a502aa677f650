"""Says what it costs to have ranks that divide the same layers on several nodes."""

from collections.abc import Sequence

from asyncrl.core.measures.units import memory
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.models.model_shape import ELEMENT_BYTES, ModelShape


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
