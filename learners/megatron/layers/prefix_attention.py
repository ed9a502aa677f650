"""Attention on a GPU of segments that continue others: over the preamble and the shared prefix that they continue, and causally
over their own tokens. One FlexAttention kernel computes all of it, with a mask made from the segments.

:mod:`asyncrl.learners.megatron.cpu.attention` is the same on a CPU.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

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
    output: Tensor = _kernel(query, key, value, packed, 0, scale=scale)
    return output.squeeze(0).transpose(0, 1).flatten(1)


def attend_with_normalizers(query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, window: int) -> tuple[Tensor, Tensor]:
    """As :func:`continue_prefixes`, over a window of keys, and return the normalizers too.

    Args:
        window: how many keys a query sees at most, itself included; 0 for all.

    Returns:
        [t, heads, dim], and float32 [t, heads]: the logarithm of the sum of each query's exponentials.
    """
    output, auxiliary = _kernel(query, key, value, packed, window, return_aux=AuxRequest(lse=True))
    return output.squeeze(0).transpose(0, 1), auxiliary.lse.squeeze(0).t()


def _kernel(query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, window: int, **options: Any) -> Any:
    queries, keys, values = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))
    kernel: Any = _compiled(flex_attention) if query.is_cuda else flex_attention
    grouped = query.size(1) != key.size(1)
    return kernel(queries, keys, values, block_mask=_mask(packed, query.device, window), enable_gqa=grouped, **options)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True)


def _mask(packed: PackedRows, device: torch.device, window: int) -> BlockMask:
    """Which keys each query sees. The mask of a window is made by the first layer that needs it."""
    if window not in packed.flexible_masks:
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
        place = packed.positions().to(device)

        def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            continued = (segment[key] == earlier[query]) | (segment[key] == earliest[query])
            seen = (key <= query) & ((segment[key] == segment[query]) | continued)
            return seen & (place[query] - place[key] < window) if window else seen

        tokens = len(segment)
        # Without compilation, it would first make a mask of all pairs of tokens.
        make = _compiled(create_block_mask) if device.type == "cuda" else create_block_mask
        packed.flexible_masks[window] = make(sees, None, None, tokens, tokens, device=device)
    return packed.flexible_masks[window]
