"""Attention of rows that continue a shared prefix: over the prefix, and causally over their own tokens.

The keys and values of a prefix exist once. On a CPU, attention is computed in two parts: first each segment by itself,
as if there were no prefixes; then all rows of a prefix over the prefix, in one call without a mask. The two parts are
softmaxes over different keys. Their outputs are merged by their shares of the total sum of exponentials, computed from
the logarithms of the two sums, as in the tree reduction of ring attention (Liu et al. 2023, arXiv:2310.01889). On a
GPU, one FlexAttention kernel computes both, with a mask made from the segments.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from learners.megatron.packed_rows import Bucket, PackedRows

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def continue_prefixes(query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, scale: float | None) -> Tensor:
    """Compute attention of each token over its row, and over the shared prefix that the row continues.

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
        # The segment that comes before each segment: its shared prefix if it continues one, otherwise itself.
        before = torch.arange(len(lengths), device=device)
        for prefix, rows in enumerate(packed.prefixes):
            before[len(packed.prefixes) + rows.start : len(packed.prefixes) + rows.stop] = prefix
        earlier = before[segment]

        def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & ((segment[key] == segment[query]) | (segment[key] == earlier[query]))

        tokens = len(segment)
        # Without compilation, it would first make a mask of all pairs of tokens.
        make = _compiled(create_block_mask) if device.type == "cuda" else create_block_mask
        packed.flexible_mask = make(sees, None, None, tokens, tokens, device=device)
    return packed.flexible_mask


class _Merged(torch.autograd.Function):
    """Two calls of torch's flash attention for CPUs, and their gradients.

    Given the merged output and the logarithm of the total sum, the kernel's own backward pass computes the right
    gradient for either part: it computes attention weights from that sum, and uses nothing else from the forward pass.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, scale: float | None) -> Tensor:
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        log_sum = query.new_empty(query.shape[:2], dtype=torch.float32)
        for bucket in packed.buckets:
            parts = _forward(*(_block(tensor, bucket) for tensor in (query, key, value)), 0.0, True, scale=scale)
            for whole, part in zip((output, log_sum), parts, strict=True):
                whole[bucket.start : bucket.end] = _unblock(part, bucket)
        for prefix, rows in packed.continuations:
            over_prefix, its_log_sum = _forward(*_operands(query, key, value, rows, prefix), scale=scale)
            own, theirs = log_sum[rows], its_log_sum.squeeze(0).transpose(0, 1)
            total = torch.logaddexp(own, theirs)
            parts = (output[rows], own), (over_prefix.squeeze(0).transpose(0, 1), theirs)
            first, second = (part.float().mul_((share - total).exp_().unsqueeze(2)) for part, share in parts)
            output[rows] = first.add_(second)
            log_sum[rows] = total
        ctx.save_for_backward(query, key, value, output, log_sum)
        ctx.packed, ctx.scale = packed, scale
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, log_sum = ctx.saved_tensors
        grads = tuple(torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (query, key, value))
        for bucket in ctx.packed.buckets:
            operands = (_block(tensor, bucket) for tensor in (grad, query, key, value, output, log_sum))
            for whole, part in zip(grads, _backward(*operands, 0.0, True, scale=ctx.scale), strict=True):
                whole[bucket.start : bucket.end] = _unblock(part, bucket)
        for prefix, rows in ctx.packed.continuations:
            queries, keys, values = _operands(query, key, value, rows, prefix)
            of_rows = (tensor[rows].transpose(0, 1).unsqueeze(0) for tensor in (grad, output, log_sum))
            its_grad, its_output, its_log_sum = of_rows
            parts = _backward(its_grad, queries, keys, values, its_output, its_log_sum, 0.0, False, scale=ctx.scale)
            for whole, part, tokens in zip(grads, parts, (rows, prefix, prefix), strict=True):
                whole[tokens] += part.squeeze(0).transpose(0, 1)
        return *grads, None, None


def _operands(query: Tensor, key: Tensor, value: Tensor, rows: slice, prefix: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [1, heads, tokens of the rows, dim], and keys and values [1, heads, tokens of the prefix, dim]."""
    queries, keys, values = (
        tensor[tokens].transpose(0, 1).unsqueeze(0) for tensor, tokens in ((query, rows), (key, prefix), (value, prefix))
    )
    return queries, keys, values


def _block(tensor: Tensor, bucket: Bucket) -> Tensor:
    """Reshape [t, heads, ...] to [rows, heads, longest, ...] for the bucket's rows, padded with zeros."""
    tensor = tensor[bucket.start : bucket.end]
    if bucket.slots is not None:
        tensor = tensor.new_zeros(bucket.rows * bucket.longest, *tensor.shape[1:]).index_copy_(0, bucket.slots, tensor)
    block: Tensor = tensor.unflatten(0, (bucket.rows, bucket.longest)).transpose(1, 2)
    return block


def _unblock(block: Tensor, bucket: Bucket) -> Tensor:
    """Undo :func:`_block`: return the tokens without padding."""
    flat = block.transpose(1, 2).flatten(0, 1)
    return flat if bucket.slots is None else flat.index_select(0, bucket.slots)
