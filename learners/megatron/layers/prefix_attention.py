"""Attention on a GPU of segments that continue others: over the preamble and the shared prefix that they continue, and causally
over their own tokens. One FlexAttention kernel computes all of it, with a mask made from the segments.

:mod:`asyncrl.learners.megatron.cpu.attention` is the same on a CPU.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from asyncrl.learners.megatron.layers.packed_rows import PackedRows


def continue_prefixes(query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, scale: float | None) -> Tensor:
    """Compute attention of each token over its row, and over the preamble and shared prefix that the row continues.

    It works on any device, but without a GPU it is slow and has no gradients.

    Args:
        query: [t, heads, dim]; key, value: [t, query groups, dim]; query and key are already rotated.
        packed: how the rows and prefixes lie in the packed sequence.
        scale: factor of the products; None for ``1 / sqrt(dim)``.

    Returns:
        [t, heads * dim].
    """
    queries, keys, values = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))
    kernel: Any = flex_attention
    if query.is_cuda:
        kernel = _compiled(kernel)
    grouped = query.size(1) != key.size(1)
    output: Tensor = kernel(queries, keys, values, block_mask=_mask(packed, query.device), scale=scale, enable_gqa=grouped)
    return output.squeeze(0).transpose(0, 1).flatten(1)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True)


def _mask(packed: PackedRows, device: torch.device) -> BlockMask:
    """Which keys each query sees. The mask is made by the first layer that needs it."""
    if packed.flexible_mask is None:
        lengths = torch.tensor(packed.lengths, device=device)
        segment = torch.arange(len(lengths), device=device).repeat_interleave(lengths)
        # The segment that comes before each segment: the preamble or shared prefix that it continues, otherwise itself.
        before = torch.arange(len(lengths), device=device)
        first = int(packed.preamble > 0)
        rows_begin = first + len(packed.prefixes)
        if packed.preamble:
            before[:rows_begin] = 0
        for prefix, rows in enumerate(packed.prefixes, first):
            before[rows_begin + rows.start : rows_begin + rows.stop] = prefix
        earlier, earliest = before[segment], before[before][segment]

        def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            continued = (segment[key] == earlier[query]) | (segment[key] == earliest[query])
            return (key <= query) & ((segment[key] == segment[query]) | continued)

        tokens = len(segment)
        # Without compilation, it would first make a mask of all pairs of tokens.
        make = _compiled(create_block_mask) if device.type == "cuda" else create_block_mask
        packed.flexible_mask = make(sees, None, None, tokens, tokens, device=device)
    return packed.flexible_mask
