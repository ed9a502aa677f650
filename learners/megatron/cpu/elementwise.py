"""Root-mean-square norm, gated SiLU and rotary embedding on a CPU, by the loops of :mod:`.elementwise_loops`;
:mod:`asyncrl.learners.megatron.layers.elementwise` has the formulas. Tensors are float32 or bfloat16.

Each of torch's operators passes over memory again, which would cost a small model more time than its matrix products.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asyncrl.core.process.compiled import Array
from asyncrl.learners.megatron.cpu import elementwise_loops as loops
from asyncrl.learners.megatron.cpu.row_threads import in_threads


def rms_norm(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Norm ``values`` as :func:`asyncrl.learners.megatron.layers.elementwise.rms_norm` does.

    Raises:
        ValueError: the weight is of another data type or size.
    """
    if weight.dtype is not values.dtype or weight.shape != values.shape[-1:]:
        raise ValueError(f"a weight {[*weight.shape]} of {weight.dtype} does not go with {[*values.shape]} of {values.dtype}")
    normed: Tensor = _RMSNorm.apply(values, weight, epsilon)
    return normed


def gated_silu(gate_up: Tensor) -> Tensor:
    """Compute ``silu(gate) * up`` as :func:`asyncrl.learners.megatron.layers.elementwise.gated_silu` does."""
    gated: Tensor = _GatedSilu.apply(gate_up)
    return gated


def rotate(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate ``values`` as ``elementwise.rotate`` does; the result is float32, rounded to the data
    type of ``values``.

    Raises:
        ValueError: cosine or sine are of another shape.
    """
    if not cosine.shape == sine.shape == (len(values), 1, values.size(-1) // 2):
        raise ValueError(f"cosine {[*cosine.shape]} and sine {[*sine.shape]} do not go with values {[*values.shape]}")
    rotated: Tensor = _Rotate.apply(values, cosine, sine)
    return rotated


def _arrays(*tensors: Tensor) -> list[Array]:
    """Contiguous tensors as numpy's arrays, without a copy; bfloat16 as its bits."""
    plain = [tensor.detach() for tensor in tensors]
    return [(tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy() for tensor in plain]


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        rows, weight = values.contiguous().view(-1, values.size(-1)), weight.contiguous()
        normed, scales = torch.empty_like(rows), rows.new_empty(len(rows), dtype=torch.float32)
        given, results = _arrays(rows, weight), _arrays(normed, scales)
        in_threads(len(rows), rows.numel(), lambda _, *part: loops.norm(*given, epsilon, *results, *part))
        ctx.save_for_backward(rows, weight, scales)
        return normed.view(values.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, weight, scales = ctx.saved_tensors
        by_values = torch.empty_like(rows)
        by_weight = rows.new_zeros(torch.get_num_threads(), rows.size(1), dtype=torch.float32)
        arrays, sums = _arrays(grad.contiguous().view(rows.shape), rows, weight, scales, by_values), by_weight.numpy()
        in_threads(len(rows), rows.numel(), lambda number, *part: loops.norm_gradient(*arrays, sums[number], *part))
        return by_values.view(grad.shape), by_weight.sum(0).to(weight.dtype), None


class _GatedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        rows = gate_up.contiguous().view(-1, gate_up.size(-1))
        gated = rows.new_empty(len(rows), rows.size(1) // 2)
        arrays = _arrays(rows, gated)
        in_threads(len(rows), rows.numel(), lambda _, *part: loops.gated_silu(*arrays, *part))
        ctx.save_for_backward(rows)
        return gated.view(*gate_up.shape[:-1], gated.size(1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        by_rows = torch.empty_like(rows)
        arrays = _arrays(grad.contiguous().view(len(rows), grad.size(-1)), rows, by_rows)
        in_threads(len(rows), rows.numel(), lambda _, *part: loops.gated_silu_gradient(*arrays, *part))
        return by_rows.view(*grad.shape[:-1], rows.size(1))


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        values, cosine, sine = values.contiguous(), *(table.float().squeeze(1).contiguous() for table in (cosine, sine))
        rotated = torch.empty_like(values, dtype=torch.float32)
        arrays = _arrays(values, cosine, sine, rotated)
        in_threads(len(values), values.numel(), lambda _, *part: loops.rotate(*arrays, *part))
        ctx.save_for_backward(cosine, sine)
        ctx.dtype = values.dtype
        return rotated

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        grad = grad.contiguous()
        by_values = torch.empty_like(grad, dtype=ctx.dtype)
        arrays = _arrays(grad, cosine, sine, by_values)
        in_threads(len(grad), grad.numel(), lambda _, *part: loops.rotate_back(*arrays, *part))
        return by_values, None, None
