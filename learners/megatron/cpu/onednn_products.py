"""Has the learner multiply with oneDNN on a CPU, and oneDNN keep little of what it has made.

oneDNN comes with torch, which takes it for bfloat16. For float32 torch takes MKL, which uses AVX-512 on Intel's processors only;
oneDNN does on others too, where it multiplies about twice as fast, and no slower without AVX-512. Which of them is faster on this
processor is measured.

oneDNN makes machine code and scratch memory for each shape of product, and keeps those of the last thousand. Nearly every
micro-batch has a number of tokens of its own, so a rank would keep a GB of them, and go through that memory as it multiplies.

What always holds: products keep float32's precision.
"""

import os
import warnings
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from asyncrl.learners.megatron.cpu.piece_speed import made_values, ours_is_faster

_KEPT_SHAPES = "32"
"""Enough for one micro-batch, whose layers all have the same few shapes."""
_SMALL = 1 << 18
"""Multiplications in a product below which the call of Python would cost more than is gained."""

_replaced: list[torch.library.Library] = []
"""What torch's operators are replaced by, as long as these live."""


@cache
def multiply_with_onednn() -> bool:
    """Have this process multiply so. What it has multiplied before may keep more.

    Returns:
        Whether float32 matrices are multiplied with oneDNN too.
    """
    for limit in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # oneDNN's own, and torch's
        os.environ[limit] = _KEPT_SHAPES
    has_both = torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not has_both or not _is_faster():
        return False
    operators = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # torch warns of what is replaced
        operators.impl("mm", product, "CPU", allow_override=True)
        operators.impl("addmm_", add_product, "CPU", allow_override=True)
    _replaced.append(operators)
    return True


def product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply matrices on a CPU, [m, k] by [k, n], to [m, n] of the same data type."""
    if _is_for_onednn(left, right):
        multiplied: Tensor = torch.ops.mkldnn._linear_pointwise.default(left, right.t(), None, "none", [], "")
        return multiplied
    return torch.mm(left, right, out=left.new_empty(0))


def add_product(total: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Multiply ``total`` by ``beta`` and add ``alpha`` times the product of two matrices to it, in place."""
    fits = total.dtype is torch.float32 and total.shape == (left.size(0), right.size(-1))
    if beta == alpha == 1 and fits and _is_for_onednn(left, right):
        return total.add_(product(left, right))
    summed = torch.addmm(total, left, right, beta=beta, alpha=alpha)
    if summed.shape != total.shape:
        raise RuntimeError(f"a product of shape {[*summed.shape]} cannot be added in place to a tensor of shape {[*total.shape]}")
    return total.copy_(summed)


def _is_for_onednn(left: Tensor, right: Tensor) -> bool:
    """Whether these are float32 matrices that can be multiplied, and are not small."""
    return (
        left.dtype is torch.float32
        and right.dtype is torch.float32
        and left.dim() == 2
        and right.dim() == 2
        and left.size(1) == right.size(0)
        and left.numel() * right.size(1) >= _SMALL
    )


def _is_faster() -> bool:
    """Whether oneDNN multiplies float32 matrices faster, measured on the products of a small layer, forward and backward."""
    rows, weight, gradient = (made_values(*shape).detach() for shape in ((1024, 256), (768, 256), (1024, 768)))

    def products(multiply: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], object]:
        def run() -> None:
            multiply(rows, weight.t())
            multiply(gradient, weight)
            multiply(gradient.t(), rows)

        return run

    return ours_is_faster("products in float32", products(product), products(torch.mm))
