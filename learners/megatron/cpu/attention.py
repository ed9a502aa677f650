"""Attention of packed segments on a CPU, in float32: causally over a segment's own tokens, and over the preamble and the shared
prefix that it continues. The code is that of :mod:`.attention_code`.

What always holds: a tensor lives as long as code that has its address runs.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from asyncrl.learners.megatron.cpu.attention_code import AttentionCode, Heads, attention_code
from asyncrl.learners.megatron.cpu.row_threads import in_threads
from asyncrl.learners.megatron.cpu.vector_code import LANES


def attention_on_cpu(query: Tensor, key: Tensor, value: Tensor, segments: Tensor, scale: float | None = None) -> Tensor:
    """Compute attention of each token over its row, and over the preamble and shared prefix that the row continues.

    At most as many threads as there are key heads share the work.

    Args:
        query: float32 [t, heads, dim]; key, value: float32 [t, key heads, dim]; query and key are already rotated.
        segments: see :func:`asyncrl.learners.megatron.layers.packed_rows.segment_table`; together they have all ``t`` tokens.
        scale: factor of the products; None for ``1 / sqrt(dim)``.

    Returns:
        float32 [t, heads, dim].

    Raises:
        ValueError: the tensors are of another data type, or their shapes do not go together.
    """
    tokens, heads, dim = query.shape
    if {query.dtype, key.dtype, value.dtype} != {torch.float32}:
        raise ValueError(f"attention needs float32 tensors, not {query.dtype}, {key.dtype} and {value.dtype}")
    if key.shape != value.shape or key.shape[::2] != (tokens, dim) or heads % key.size(1):
        raise ValueError(f"queries {[*query.shape]}, keys {[*key.shape]} and values {[*value.shape]} do not go together")
    if (described := int(segments[:, 1].sum())) != tokens:
        raise ValueError(f"the segments have {described} tokens, but there are {tokens}")
    if lacking := -dim % LANES:
        query, key, value = (F.pad(tensor, (0, lacking)) for tensor in (query, key, value))
    output: Tensor = _Attention.apply(query, key, value, segments, dim**-0.5 if scale is None else scale)
    return output[..., :dim]


def prepare(heads: int, groups: int, dim: int) -> None:
    """Have the code made for this many heads, key heads and channels, before it is needed."""
    _code(heads, groups, dim + -dim % LANES)


def _code(heads: int, groups: int, dim: int) -> tuple[AttentionCode, int]:
    """The code, and how many heads its tiles have."""
    together = max(count for count in range(1, LANES + 1) if heads // groups % count == 0)
    return attention_code(Heads(dim, together)), together


class _Attention(torch.autograd.Function):
    """Keeps two numbers for each query of each head: its largest score, and one over the sum of weights relative to that."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, segments: Tensor, scale: float) -> Tensor:
        query, key, value = (tensor.contiguous() for tensor in (query, key, value))
        output = torch.empty_like(query)
        peaks, shares = query.new_empty(2, *query.shape[:2])
        tensors = (query, key, value, output, peaks, shares)
        _compute(tensors, segments, scale, backward=False)
        ctx.save_for_backward(*tensors, segments)
        ctx.scale = scale
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, peaks, shares, segments = ctx.saved_tensors
        grad = grad.contiguous()
        slopes = torch.linalg.vecdot(grad, output)
        gradients = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        _compute((query, key, value, grad, slopes, peaks, shares, *gradients), segments, ctx.scale, backward=True)
        return *gradients, None, None


def _compute(tensors: tuple[Tensor, ...], segments: Tensor, scale: float, *, backward: bool) -> None:
    """Run one of the code's functions over all segments. ``tensors``, the first being query and key, are what it takes first."""
    heads, groups, dim = tensors[0].size(1), tensors[1].size(1), tensors[0].size(2)
    code, together = _code(heads, groups, dim)
    function = code.backward if backward else code.forward
    tiles, longest = heads // groups // together, int(segments[:, 1::2].sum(1).max()) if len(segments) else 0

    def compute(_: int, begin: int, end: int) -> None:
        tables = torch.empty(1 + backward, longest + LANES, LANES, dtype=torch.float32)
        taken = [tensor.data_ptr() for tensor in (*tensors, segments, *tables)]
        function(*taken, len(segments), heads, groups, begin * tiles, end * tiles, scale)

    in_threads(groups, tensors[0].numel(), compute)
