"""Attention of packed segments on a CPU, in float32: causally over a segment's own tokens, and over the preamble and the shared
prefix that it continues."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from learners.megatron.attention_code import Heads, attention_code
from learners.megatron.packed_rows import PackedRows
from learners.megatron.row_threads import in_threads
from learners.megatron.vector_code import LANES


def attention_on_cpu(query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, scale: float | None) -> Tensor:
    """Compute attention of each token over its row, and over the preamble and shared prefix that the row continues.

    Args:
        query: float32 [t, heads, dim]; key, value: float32 [t, query groups, dim]; query and key are already rotated.
        packed: how the segments lie in the packed sequence.
        scale: factor of the products; None for ``1 / sqrt(dim)``.

    Returns:
        float32 [t, heads, dim].
    """
    dim = query.size(-1)
    scale = dim**-0.5 if scale is None else scale
    if lacking := -dim % LANES:
        query, key, value = (F.pad(tensor, (0, lacking)) for tensor in (query, key, value))
    output: Tensor = _Attention.apply(query, key, value, packed, scale)
    return output[..., :dim]


class _Attention(torch.autograd.Function):
    """The gradient computes attention weights again, from two numbers that are kept for each query of each head: its largest
    score, and one over the sum of exponentials relative to that."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, scale: float) -> Tensor:
        query, key, value = (tensor.contiguous() for tensor in (query, key, value))
        output = torch.empty_like(query)
        peaks, shares = query.new_empty(2, *query.shape[:2])
        given, made = (query, key, value), (output, peaks, shares)
        _run("forward", given, (*given, *made), packed, 1, scale)
        ctx.save_for_backward(*given, *made)
        ctx.packed, ctx.scale = packed, scale
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, peaks, shares = ctx.saved_tensors
        grad = grad.contiguous()
        slopes = torch.linalg.vecdot(grad, output)
        of_query, of_key, of_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        tensors = (query, key, value, grad, slopes, peaks, shares, of_query, of_key, of_value)
        _run("backward", (query, key, value), tensors, ctx.packed, 2, ctx.scale)
        return of_query, of_key, of_value, None, None


def _run(
    name: str, given: tuple[Tensor, Tensor, Tensor], tensors: tuple[Tensor, ...], packed: PackedRows, tables: int, scale: float
) -> None:
    """Run the function ``name`` of the code over all segments. Threads share the key heads.

    Args:
        given: query, key and value.
        tensors: what the function takes before the segments.
        tables: how many tables [keys, LANES] it needs to compute a tile.
    """
    heads, groups = given[0].size(1), given[1].size(1)
    together = max(count for count in range(1, LANES + 1) if heads // groups % count == 0)
    function: Callable[..., None] = getattr(attention_code(Heads(given[0].size(2), together)), name)
    segments = packed.attention_segments
    pointers = [tensor.data_ptr() for tensor in tensors]
    tiles_of_group = heads // groups // together

    def compute(_: int, begin: int, end: int) -> None:
        scores = [torch.empty(packed.longest_row + LANES, LANES) for _ in range(tables)]
        bounds = (begin * tiles_of_group, end * tiles_of_group)
        tables_at = [table.data_ptr() for table in scores]
        function(*pointers, segments.data_ptr(), *tables_at, len(segments), heads, groups, *bounds, scale)

    in_threads(groups, given[0].numel(), compute)
