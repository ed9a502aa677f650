"""Takes rows out of a tensor and places rows into one. The gradient of each operation is the other.

``index_select`` gives the same values, but its gradient adds row by row, because an index may repeat. Here no index
repeats, and copying is many times faster on a CPU.
"""

from typing import Any

import torch
from torch import Tensor


def take_rows(source: Tensor, index: Tensor) -> Tensor:
    """``source[index]`` along dimension 0.

    Args:
        source: [rows, ...].
        index: int64 [n], without repetition.
    """
    taken: Tensor = _Take.apply(source, index)
    return taken


def place_rows(source: Tensor, index: Tensor, rows: int) -> Tensor:
    """[rows, ...] with ``source[i]`` at ``index[i]`` and zeros elsewhere.

    Args:
        source: [n, ...].
        index: int64 [n], without repetition, below ``rows``.
    """
    placed: Tensor = _Place.apply(source, index, rows)
    return placed


def padded(tensor: Tensor, slots: Tensor, rows: int, longest: int, heads: int) -> Tensor:
    """Bring [tokens, groups, dim] to [rows, heads, longest, dim]. Each token goes to its slot, and each group is repeated for
    its heads.

    Heads are repeated here, without ``enable_gqa``, because with it torch does not use its fused CPU kernel.
    """
    groups, dim = tensor.shape[1:]
    block = place_rows(tensor, slots, rows * longest).reshape(rows, longest, groups, dim).transpose(1, 2)
    if groups == heads:
        return block
    repeated = block.unsqueeze(2).expand(-1, -1, heads // groups, -1, -1)
    return repeated.reshape(rows, heads, longest, dim)


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = source.size(0)
        return source.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return _placed(grad, index, ctx.rows), None


class _Place(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, index: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(index)
        return _placed(source, index, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return grad.index_select(0, index), None, None


def _placed(source: Tensor, index: Tensor, rows: int) -> Tensor:
    return source.new_zeros(rows, *source.shape[1:]).index_copy_(0, index, source)
