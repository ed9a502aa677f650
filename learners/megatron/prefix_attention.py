"""Attention of segments that continue others: over the preamble and the shared prefix that they continue, and causally over
their own tokens.

The keys and values of a preamble or prefix exist once. On a CPU, attention is computed in two parts: first each segment by
itself, as if it continued nothing; then all rows of a prefix over what comes before them, in one call without a mask, and
likewise what the prefixes have beyond a preamble. The two parts are softmaxes over different keys. Their outputs are merged
by their shares of the total sum of exponentials, computed from the logarithms of the two sums, as in the tree reduction of
ring attention (Liu et al. 2023, arXiv:2310.01889). On a GPU, one FlexAttention kernel computes both, with a mask made from
the segments.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from learners.megatron.packed_rows import PackedRows

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def continue_prefixes(query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, scale: float | None) -> Tensor:
    """Compute attention of each token over its row, and over the preamble and shared prefix that the row continues.

    Args:
        query: [t, heads, dim]; key, value: [t, query groups, dim]; query and key are already rotated.
        packed: how the rows and prefixes lie in the packed sequence.
        scale: factor of the products; None for ``1 / sqrt(dim)``.

    Returns:
        [t, heads * dim].
    """
    if query.is_cuda:
        return flexible(query, key, value, packed, scale)
    repeats = query.size(1) // key.size(1)
    if repeats > 1:
        key, value = (tensor.repeat_interleave(repeats, 1) for tensor in (key, value))
    merged: Tensor = _Merged.apply(query, key, value, packed, scale)
    return merged.flatten(1)


def flexible(query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, scale: float | None) -> Tensor:
    """Compute the same with FlexAttention, on any device; without a GPU it is slow."""
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


class _Merged(torch.autograd.Function):
    """Both parts by torch's flash attention for CPUs, and their gradients.

    Given the merged output and the logarithm of the total sum, the kernel's own backward pass computes the right
    gradient for either part: it computes attention weights from that sum, and uses nothing else from the forward pass.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, scale: float | None) -> Tensor:
        segments = packed.padded_segments
        operands = [segments.pad(tensor) for tensor in (query, key, value)]
        parts = [_forward(*of_block, 0.0, True, scale=scale) for of_block in zip(*operands, strict=True)]
        output, log_sum = (segments.unpad(of_blocks) for of_blocks in zip(*parts, strict=True))
        over_earlier, their_log_sum = torch.zeros_like(output), torch.full_like(log_sum, -torch.inf)
        queries, keys, values = map(_heads_first, (query, key, value))
        for before, tokens in packed.continuations:
            part, its_log_sum = _forward(queries[:, :, tokens], _joined(keys, before), _joined(values, before), scale=scale)
            over_earlier[tokens], their_log_sum[tokens] = part[0].transpose(0, 1), its_log_sum[0].transpose(0, 1)
        total = torch.logaddexp(log_sum, their_log_sum)
        shares = ((each - total).exp_().unsqueeze(2) for each in (log_sum, their_log_sum))
        own, theirs = (part.float().mul_(share) for part, share in zip((output, over_earlier), shares, strict=True))
        output = own.add_(theirs).to(query.dtype)
        ctx.save_for_backward(query, key, value, output, total)
        ctx.packed, ctx.scale = packed, scale
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        segments = ctx.packed.padded_segments
        query, key, value, output, log_sum = ctx.saved_tensors
        operands = [segments.pad(tensor) for tensor in (grad, query, key, value, output, log_sum)]
        parts = [_backward(*of_block, 0.0, True, scale=ctx.scale) for of_block in zip(*operands, strict=True)]
        grads = tuple(segments.unpad(of_blocks) for of_blocks in zip(*parts, strict=True))
        of_queries, of_keys, of_values = map(_heads_first, grads)
        of_tokens = [_heads_first(tensor) for tensor in (grad, query, output, log_sum)]
        keys, values = map(_heads_first, (key, value))
        for before, tokens in ctx.packed.continuations:
            its_grad, its_queries, its_outputs, its_log_sums = (each[:, :, tokens] for each in of_tokens)
            earlier = _joined(keys, before), _joined(values, before)
            parts = _backward(its_grad, its_queries, *earlier, its_outputs, its_log_sums, 0.0, False, scale=ctx.scale)
            of_queries[:, :, tokens].add_(parts[0])
            for whole, part in ((of_keys, parts[1]), (of_values, parts[2])):
                for place, piece in zip(before, part.split([each.stop - each.start for each in before], 2), strict=True):
                    whole[:, :, place].add_(piece)
        return *grads, None, None


def _heads_first(tensor: Tensor) -> Tensor:
    """A view [1, heads, t, ...] of ``tensor`` [t, heads, ...]."""
    return tensor.transpose(0, 1).unsqueeze(0)


def _joined(tensor: Tensor, places: Sequence[slice]) -> Tensor:
    """[1, heads, n, dim], the tokens of ``tensor`` [1, heads, t, dim] at ``places``."""
    return torch.cat([tensor[:, :, place] for place in places], 2)
