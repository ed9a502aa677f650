"""Root-mean-square norm, gated SiLU and rotary embedding on a CPU, by the code of :mod:`.elementwise_code`;
:mod:`learners.megatron.layers.elementwise` has the formulas.

What always holds: a tensor lives as long as code that has its address runs.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from learners.megatron.cpu.elementwise_code import ElementwiseCode, elementwise_code
from learners.megatron.cpu.row_threads import in_threads
from learners.megatron.cpu.vector_code import LANES


def fits(values: Tensor, *, halves: bool = False) -> bool:
    """Whether the code serves values of this data type and last dimension; ``halves``: it splits that dimension in two."""
    return values.dtype in (torch.float32, torch.bfloat16) and values.size(-1) % (LANES * (1 + halves)) == 0


def rms_norm(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """See :func:`learners.megatron.layers.elementwise.rms_norm`; both must have the same data type.

    Raises:
        ValueError: the weight is of another data type or size.
    """
    if weight.dtype is not values.dtype or weight.shape != values.shape[-1:]:
        raise ValueError(f"a weight {[*weight.shape]} of {weight.dtype} does not go with {[*values.shape]} of {values.dtype}")
    normed: Tensor = _RMSNorm.apply(values, weight, epsilon)
    return normed


def gated_silu(gate_up: Tensor) -> Tensor:
    """See :func:`learners.megatron.layers.elementwise.gated_silu`."""
    gated: Tensor = _GatedSilu.apply(gate_up)
    return gated


def rotate(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """See :func:`learners.megatron.layers.elementwise.rotate`, but the result is float32, rounded to the data type of ``values``.

    Raises:
        ValueError: cosine or sine are of another shape.
    """
    if not cosine.shape == sine.shape == (len(values), 1, values.size(-1) // 2):
        raise ValueError(f"cosine {[*cosine.shape]} and sine {[*sine.shape]} do not go with values {[*values.shape]}")
    rotated: Tensor = _Rotate.apply(values, cosine, sine)
    return rotated


def _code_for(values: Tensor) -> ElementwiseCode:
    return elementwise_code(bfloat16=values.dtype is torch.bfloat16)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        rows, weight = values.contiguous().view(-1, values.size(-1)), weight.contiguous()
        normed, scales = torch.empty_like(rows), rows.new_empty(len(rows), dtype=torch.float32)
        addresses = [tensor.data_ptr() for tensor in (rows, weight, normed, scales)]
        norm = _code_for(values).norm
        in_threads(len(rows), rows.numel(), lambda _, *part: norm(*addresses, rows.size(1), epsilon, *part))
        ctx.save_for_backward(rows, weight, scales)
        return normed.view(values.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, weight, scales = ctx.saved_tensors
        of_rows = grad.contiguous()
        of_values, of_weight = torch.empty_like(rows), rows.new_zeros(torch.get_num_threads(), rows.size(1), dtype=torch.float32)
        addresses = [tensor.data_ptr() for tensor in (of_rows, rows, weight, scales, of_values)]
        gradient = _code_for(rows).norm_gradient

        def compute(number: int, begin: int, end: int) -> None:
            gradient(*addresses, of_weight[number].data_ptr(), rows.size(1), begin, end)

        in_threads(len(rows), rows.numel(), compute)
        return of_values.view(grad.shape), of_weight.sum(0).to(weight.dtype), None


class _GatedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate_up = gate_up.contiguous()
        size = gate_up.size(-1) // 2
        gated = gate_up.new_empty(*gate_up.shape[:-1], size)
        addresses = [tensor.data_ptr() for tensor in (gate_up, gated)]
        gate = _code_for(gate_up).gated_silu
        in_threads(gated.numel() // size, gate_up.numel(), lambda _, *part: gate(*addresses, size, *part))
        ctx.save_for_backward(gate_up)
        return gated

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        grad, of_both, size = grad.contiguous(), torch.empty_like(gate_up), gate_up.size(-1) // 2
        addresses = [tensor.data_ptr() for tensor in (grad, gate_up, of_both)]
        gradient = _code_for(gate_up).gated_silu_gradient
        in_threads(grad.numel() // size, gate_up.numel(), lambda _, *part: gradient(*addresses, size, *part))
        return of_both


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        values, cosine, sine = values.contiguous(), cosine.float().contiguous(), sine.float().contiguous()
        rotated = torch.empty_like(values, dtype=torch.float32)
        addresses = [tensor.data_ptr() for tensor in (values, cosine, sine, rotated)]
        turn = _code_for(values).rotate
        in_threads(len(values), values.numel(), lambda _, *part: turn(*addresses, *values.shape[1:], *part))
        ctx.save_for_backward(cosine, sine)
        ctx.dtype = values.dtype
        return rotated

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        grad = grad.contiguous()
        of_values = torch.empty_like(grad, dtype=ctx.dtype)
        addresses = [tensor.data_ptr() for tensor in (grad, cosine, sine, of_values)]
        turn = _code_for(of_values).rotate_back
        in_threads(len(grad), grad.numel(), lambda _, *part: turn(*addresses, *grad.shape[1:], *part))
        return of_values, None, None
