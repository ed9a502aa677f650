"""Root-mean-square norm, gated SiLU and rotary embedding on a GPU, each compiled by torch into one kernel, and all that lies
between the projection of queries, keys and values and their attention.

By torch's operators one after another, as in :mod:`.elementwise`, they took half of a training step of Qwen3 1.7B on an H100. The
formulas are the plain ones, and autograd derives the gradients.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_SIGNATURES = 64
"""How often one function may be compiled in a process: for each kind of norm, with gradients and without, frozen or not. Beyond
its limit, 8 at first, torch goes back to single operators."""


def rms_norm(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """As :func:`.elementwise.rms_norm`."""
    computed: Tensor = _call(_rms_norm, values, weight, epsilon)
    return computed


def gated_silu(gate_up: Tensor) -> Tensor:
    """As :func:`.elementwise.gated_silu`."""
    computed: Tensor = _call(_gated_silu, gate_up)
    return computed


def rotate(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """As :func:`.elementwise.rotate`."""
    computed: Tensor = _call(_rotate, values, cosine, sine)
    return computed


def heads(
    projected: Tensor, rotation: tuple[Tensor, Tensor], norms: tuple[Tensor, Tensor] | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Make queries, keys and values of what their projection gives; see :class:`.kernels.Kernels`."""
    cosine, sine = (values.unsqueeze(2) for values in rotation)
    made: tuple[Tensor, Tensor, Tensor] = _call(_heads, projected, cosine, sine, norms, epsilon)
    return made


def _heads(
    projected: Tensor, cosine: Tensor, sine: Tensor, norms: tuple[Tensor, Tensor] | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The formula of :func:`heads`. Halves of a head stay apart from each other until the end, so that what is summed and what is
    rotated are visited in the same order, by one kernel; and parts are split and joined, because the gradient of a slice would be
    a sum."""
    queries, keys, values = projected.split((projected.size(2) - 2, 1, 1), 2)
    of_norms = norms or (None, None)
    query, key = (
        _normed_and_rotated(each, weight, epsilon, cosine, sine) for each, weight in zip((queries, keys), of_norms, strict=True)
    )
    return query.flatten(1, 2), key.flatten(1, 2), values.flatten(1, 2).contiguous()


def _normed_and_rotated(values: Tensor, weight: Tensor | None, epsilon: float, cosine: Tensor, sine: Tensor) -> Tensor:
    half, dim = cosine.size(-1), values.size(-1)
    sizes = [half, half] if dim == 2 * half else [half, half, dim - 2 * half]
    parts = list(values.split(sizes, -1))
    if weight is not None:
        total = sum(part.float().square().sum(-1, keepdim=True) for part in parts)
        scale = torch.rsqrt(total / dim + epsilon)
        weights = weight.split(sizes)
        parts = [(part.float() * scale).to(values.dtype) * of_part for part, of_part in zip(parts, weights, strict=True)]
    first, second, *rest = parts
    cosine, sine = cosine.to(values.dtype), sine.to(values.dtype)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine, *rest], -1)


def _rms_norm(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    rows = values.float()
    scale = torch.rsqrt(rows.square().mean(-1, keepdim=True) + epsilon)
    return (rows * scale).to(values.dtype) * weight


def _gated_silu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def _rotate(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = values.chunk(2, -1)
    cosine, sine = cosine.to(values.dtype), sine.to(values.dtype)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def _call(formula: Callable[..., Any], values: Tensor, *others: Any) -> Any:
    """Compute a formula of ``values`` [t, ...]; ``others`` that have t too are tensors of as many dimensions."""
    for each in (values, *others):
        if isinstance(each, Tensor) and each.dim() == values.dim():
            # The number of tokens differs between micro-batches; the other sizes are the model's, and kernels are made for them.
            torch._dynamo.maybe_mark_dynamic(each, 0)
    return compiled(formula)(values, *others)


@functools.cache
def compiled(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula as kernels for the device of its arguments, compiled when they are first used."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _SIGNATURES)
    return torch.compile(formula, dynamic=False)
