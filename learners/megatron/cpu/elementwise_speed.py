"""Whether norm, gated SiLU and rotary embedding are faster by our own code or by torch's operators on this processor."""

from collections.abc import Callable
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from learners.megatron.cpu import cpu_elementwise
from learners.megatron.cpu.piece_speed import made_values, ours_is_faster
from learners.megatron.layers import elementwise

Piece = Literal["norm", "gated SiLU", "rotation"]
_TOKENS, _SIZE, _HEADS = 1024, 256, 4
"""What they are measured on, in a model of a few million parameters."""


@cache
def ours_pays(piece: Piece, dtype: torch.dtype) -> bool:
    """Return whether our own code computes the piece in this data type."""
    of_size = made_values(_TOKENS, 1, _SIZE)
    weight = made_values(_SIZE).detach().to(dtype).requires_grad_()
    angles = made_values(_TOKENS, 1, _SIZE // _HEADS // 2).detach()
    cosine, sine = angles.cos(), angles.sin()
    values: Tensor
    ways: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
    match piece:
        case "norm":
            values = of_size
            ways = (lambda x: cpu_elementwise.rms_norm(x, weight, 1e-6), lambda x: elementwise.norm_by_torch(x, weight, 1e-6))
        case "gated SiLU":
            values = made_values(_TOKENS, 1, 2 * _SIZE)
            ways = (cpu_elementwise.gated_silu, elementwise.gated_silu_by_torch)
        case "rotation":
            values = made_values(_TOKENS, _HEADS, _SIZE // _HEADS)
            ways = (lambda x: cpu_elementwise.rotate(x, cosine, sine), lambda x: elementwise.rotate_by_torch(x, cosine, sine))
    given = values.detach().to(dtype).requires_grad_()

    def passes(way: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        def run() -> None:
            output = way(given)
            torch.autograd.grad(output, given, torch.ones_like(output))

        return run

    return ours_is_faster(f"{piece} in {dtype}", *map(passes, ways))
