"""Model FLOPs: the floating-point operations that the mathematics of a pass needs, whatever the hardware does.

Only matrix products count, with two operations for each multiply-add: products with the weights, and attention over the
keys that the causal mask lets a token see. A backward pass counts twice its forward pass, minus the gradients of frozen
weights. Recomputation, padding, embedding look-ups, norms, activations and softmax do not count. In a mixture of
experts, only a token's own experts count. The last layer counts for every token, although on a CPU its feed-forward block is
computed only where a token is predicted.

Divided by the time and the device's peak, this is the model FLOPs utilisation of Chowdhery et al. 2022 (PaLM,
arXiv:2204.02311, appendix B), except for attention: PaLM counts it as if every token saw its whole row.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import repeat

import msgspec

_PEAKS = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
}
"""Dense bfloat16 operations per second from NVIDIA's data sheets, by the name that CUDA gives the device."""


class ProductShapes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a model's matrix products, which decide the number of operations.

    Attributes:
        hidden: channels between layers.
        heads, query_groups, head_dim: attention's sizes; keys and values have one head for each query group.
        feed_forward: for each layer, how many weights of its feed-forward block a token is multiplied with; in a layer
            with experts, the router's weights and those of the token's own experts.
        outputs: the vocabulary, or 1 for a critic.
        windows: for each layer, how many keys a token sees at most, 0 for all; empty if all layers see all.
        projections: weights of a layer's attention that a token is multiplied with; 0 if they follow from the other sizes.
        value_dim: channels of a head's values; 0 if they are as many as those of its keys.
        adapters: number of weights in the low-rank adapters of all layers; if there are any, all other weights are
            frozen.
    """

    hidden: int
    heads: int
    query_groups: int
    head_dim: int
    feed_forward: tuple[int, ...]
    outputs: int
    windows: tuple[int, ...] = ()
    projections: int = 0
    value_dim: int = 0
    adapters: int = 0


def forward_flops(shapes: ProductShapes, lengths: Iterable[int], predicted: int, before: Iterable[int] = repeat(0)) -> int:
    """Count the operations of one forward pass.

    Args:
        lengths: number of tokens computed in each segment: a shared prefix, or what a row has beyond it.
        predicted: number of tokens that the output layer is computed for.
        before: for each segment, the tokens of its row that come before it: attention sees them, but they are computed
            elsewhere.
    """
    return sum(_products(shapes, lengths, predicted, before))


def backward_flops(shapes: ProductShapes, lengths: Iterable[int], predicted: int, before: Iterable[int] = repeat(0)) -> int:
    """Count the operations of one backward pass; arguments as in :func:`forward_flops`."""
    weights, others = _products(shapes, lengths, predicted, before)
    # A product with frozen weights needs only the gradient of its other operand.
    return (1 if shapes.adapters else 2) * weights + 2 * others


def _products(shapes: ProductShapes, lengths: Iterable[int], predicted: int, before: Iterable[int]) -> tuple[int, int]:
    """Count the operations with the model's own weights, and all other operations."""
    tokens = pairs = 0
    windows = shapes.windows or (0,) * len(shapes.feed_forward)
    for length, earlier in zip(lengths, before, strict=False):
        tokens += length
        pairs += sum(count * _pairs(length, earlier, window) for window, count in Counter(windows).items())
    projections = shapes.projections or 2 * shapes.hidden * shapes.head_dim * (shapes.heads + shapes.query_groups)
    weights = sum(projections + of_layer for of_layer in shapes.feed_forward)
    # Products of a query with a key, and of their attention weight with the value.
    attention = shapes.heads * (shapes.head_dim + (shapes.value_dim or shapes.head_dim))
    return 2 * (tokens * weights + predicted * shapes.hidden * shapes.outputs), 2 * (pairs * attention + tokens * shapes.adapters)


def _pairs(length: int, earlier: int, window: int) -> int:
    """How many pairs of a query and a key that it sees a segment has in a layer."""
    seen = length * (length + 1) // 2 + length * earlier
    out_of_sight = min(max(0, earlier + length - window), length) if window else 0
    # The last query does not see `earlier + length - window` keys, the one before it one fewer, and so on.
    fewest, most = earlier + length - window - out_of_sight + 1, earlier + length - window
    return seen - out_of_sight * (fewest + most) // 2


def peak_flops(device_name: str) -> float | None:
    """Dense bfloat16 operations per second of a CUDA device; None if its peak is not listed here."""
    return _PEAKS.get(device_name)
