"""Root-mean-square norm, gated SiLU and rotary embedding, with gradients written by hand.

The formulas are the textbook ones, here by torch's operators. Each of these passes over memory again, so on a CPU code of our own
may compute the pieces (:mod:`asyncrl.learners.megatron.cpu.elementwise`).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from asyncrl.core.architectures.description import GATE_LIMIT, GATE_SLOPE


def rms_norm(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """``values / sqrt(mean(values**2) + epsilon) * weight`` over the last dimension, with the mean and the quotient in
    float32.

    Args:
        values: [..., n].
        weight: [n].
    """
    normed: Tensor = _RMSNorm.apply(values, weight, epsilon)
    return normed


def gated_silu(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up``.

    Args:
        gate_up: [..., 2 n], the gate in the first half.

    Returns:
        [..., n].
    """
    gated: Tensor = _GatedSilu.apply(gate_up)
    return gated


def clamped_glu(gate_up: Tensor) -> Tensor:
    """``gate * sigmoid(1.702 * gate) * (up + 1)``, with the gate clamped from above and the other from both sides (OpenAI 2025,
    arXiv:2508.10925); arguments and result as in :func:`gated_silu`."""
    gate, up = gate_up.chunk(2, -1)
    gate, up = gate.clamp(max=GATE_LIMIT), up.clamp(-GATE_LIMIT, GATE_LIMIT)
    return gate * torch.sigmoid(gate * GATE_SLOPE) * (up + 1)


def rotate(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Apply rotary position embedding (Su et al. 2021, arXiv:2104.09864): rotate the plane of channels ``i`` and
    ``i + dim / 2``.

    Args:
        values: [t, heads, dim].
        cosine, sine: [t, 1, dim / 2], of each token's angles.

    Returns:
        [t, heads, dim], on a CPU in float32, in which attention is computed there.
    """
    rotated: Tensor = _Rotate.apply(values, cosine.to(values.dtype), sine.to(values.dtype))
    return rotated if values.is_cuda else rotated.float()


def rotate_beginning(rotate: Callable[[Tensor, Tensor, Tensor], Tensor], values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the first channels of each head, as many as ``cosine`` and ``sine`` are for, by ``rotate``, a function as
    :func:`rotate`; the others stay as they are."""
    rotated = 2 * cosine.size(-1)
    if rotated == values.size(-1):
        return rotate(values, cosine, sine)
    first = rotate(values[..., :rotated].contiguous(), cosine, sine)
    return torch.cat([first, values[..., rotated:].to(first.dtype)], -1)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        rows = values.reshape(-1, values.size(-1)).float()
        mean_square = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).square_().div_(rows.size(-1))
        scale = mean_square.add_(epsilon).rsqrt_()
        normed = rows * scale
        ctx.save_for_backward(normed, scale, weight)
        product: Tensor = normed.to(values.dtype) * weight
        return product.view(values.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, scale, weight = ctx.saved_tensors
        rows = grad.reshape(normed.shape).float()
        products = rows * normed
        weight_grad = products.sum(0)
        # The norm removes the component of a row's gradient along the normed row.
        along = torch.mv(products, weight.float()).div_(-weight.numel()).unsqueeze(1)
        values_grad = torch.addcmul(rows * weight, normed, along).mul_(scale)
        return values_grad.view(grad.shape).to(grad.dtype), weight_grad.to(weight.dtype), None


class _GatedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        gradient = torch.empty_like(gate_up)
        gate_grad, up_grad = gradient.chunk(2, -1)
        activated = F.silu(gate)
        torch.mul(grad, activated, out=up_grad)
        torch.ops.aten.silu_backward.grad_input(torch.mul(grad, up, out=activated), gate, grad_input=gate_grad)
        return gradient


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _turned(values, cosine, sine, 1.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return _turned(grad, cosine, sine, -1.0), None, None


def _turned(values: Tensor, cosine: Tensor, sine: Tensor, direction: float) -> Tensor:
    turned = torch.empty_like(values)
    first, second = values.chunk(2, -1)
    turned_first, turned_second = turned.chunk(2, -1)
    torch.mul(first, cosine, out=turned_first).addcmul_(second, sine, value=-direction)
    torch.mul(second, cosine, out=turned_second).addcmul_(first, sine, value=direction)
    return turned
