"""Root-mean-square norm, gated SiLU and rotary embedding on a GPU, each compiled by torch into one kernel.

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
    return _call(_rms_norm, values, weight, epsilon)


def gated_silu(gate_up: Tensor) -> Tensor:
    """As :func:`.elementwise.gated_silu`."""
    return _call(_gated_silu, gate_up)


def rotate(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """As :func:`.elementwise.rotate`."""
    return _call(_rotate, values, cosine, sine)


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


def _call(formula: Callable[..., Tensor], values: Tensor, *others: Any) -> Tensor:
    """Compute a formula of ``values`` [t, ...]; ``others`` that have t too are tensors of as many dimensions."""
    for each in (values, *others):
        if isinstance(each, Tensor) and each.dim() == values.dim():
            # The number of tokens differs between micro-batches; the other sizes are the model's, and kernels are made for them.
            torch._dynamo.maybe_mark_dynamic(each, 0)
    result: Tensor = compiled(formula)(values, *others)
    return result


@functools.cache
def compiled(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The formula as kernels for the device of its arguments, compiled when they are first used."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _SIGNATURES)
    return torch.compile(formula, dynamic=False)
