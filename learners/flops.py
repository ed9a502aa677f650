"""Model FLOPs: the floating-point operations that the mathematics of a pass asks for, whatever the hardware does to get there.

What counts are matrix products, two operations for each multiply-add: those with the weights, and attention over the keys that
causality lets a token see. A backward pass is twice its forward pass, less the gradients of frozen weights. What is computed
again to save memory does not count, nor padding, embedding look-ups, norms, activations and softmax; of a mixture of experts a
token's own do.

Divided by the time and the device's peak this is the model FLOPs utilisation of Chowdhery et al. 2022 (PaLM, arXiv:2204.02311,
appendix B), but for attention, which is counted there as if every token saw its whole row.
"""

from collections.abc import Iterable

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
"""Dense bfloat16 operations a second, of NVIDIA's data sheets, by the name CUDA gives the device."""


class ProductShapes(msgspec.Struct, frozen=True, kw_only=True):
    """Of a model's matrix products: what decides the number of operations.

    Attributes:
        hidden: channels between layers.
        heads, query_groups, head_dim: of attention; keys and values have a head for each query group.
        feed_forward: of each layer, how many weights of its feed-forward block a token is multiplied with: its router and the
            token's own experts, where there are experts.
        outputs: the vocabulary, or 1 for a critic.
        adapters: weights of the low-rank adapters of all layers; where there are any, all other weights are frozen.
    """

    hidden: int
    heads: int
    query_groups: int
    head_dim: int
    feed_forward: tuple[int, ...]
    outputs: int
    adapters: int = 0


def forward_flops(shapes: ProductShapes, lengths: Iterable[int], predicted: int) -> int:
    """Of one forward pass.

    Args:
        lengths: tokens of each row.
        predicted: tokens the output layer is computed for.
    """
    return sum(_products(shapes, lengths, predicted))


def backward_flops(shapes: ProductShapes, lengths: Iterable[int], predicted: int) -> int:
    """Of one backward pass; arguments as of :func:`forward_flops`."""
    weights, others = _products(shapes, lengths, predicted)
    # Of a product with frozen weights only the gradient of the other operand is asked for.
    return (1 if shapes.adapters else 2) * weights + 2 * others


def _products(shapes: ProductShapes, lengths: Iterable[int], predicted: int) -> tuple[int, int]:
    """Operations with the weights of the model itself, and all others."""
    tokens = pairs = 0
    for length in lengths:
        tokens += length
        pairs += length * (length + 1) // 2
    projections = 2 * shapes.hidden * shapes.head_dim * (shapes.heads + shapes.query_groups)
    weights = sum(projections + of_layer for of_layer in shapes.feed_forward)
    # Of a query with a key, and of the weight that gives with the value.
    attention = len(shapes.feed_forward) * 2 * shapes.heads * shapes.head_dim
    return 2 * (tokens * weights + predicted * shapes.hidden * shapes.outputs), 2 * (pairs * attention + tokens * shapes.adapters)


def peak_flops(device_name: str) -> float | None:
    """Dense bfloat16 operations a second of a CUDA device; None of one whose peak is not known here."""
    return _PEAKS.get(device_name)
