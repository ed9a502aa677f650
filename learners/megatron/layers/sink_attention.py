"""Attention with a sink for each head (OpenAI 2025, arXiv:2508.10925): a score that is learned, that no key has, and whose weight
goes to no value. A layer may see a window of the last keys alone.

What always holds: a query sees what its row has before it, in its preamble and shared prefix too, and the window counts these.
"""

import torch
from torch import Tensor

from asyncrl.learners.megatron.layers.packed_rows import PackedRows
from asyncrl.learners.megatron.layers.prefix_attention import attend_with_normalizers


def attention_with_sinks(query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, sinks: Tensor, window: int) -> Tensor:
    """Compute attention of each token over its row, and over the preamble and shared prefix that the row continues.

    Args:
        query: [t, heads, dim]; key, value: [t, query groups, dim]; query and key are already rotated.
        packed: how the rows and prefixes lie in the packed sequence.
        sinks: [heads].
        window: how many keys a query sees at most, itself included; 0 for all.

    Returns:
        [t, heads * dim].
    """
    if query.is_cuda:
        return attention_by_flexible_kernel(query, key, value, packed, sinks, window)
    if (repeats := query.size(1) // key.size(1)) > 1:
        key, value = (tensor.repeat_interleave(repeats, 1) for tensor in (key, value))
    queries, keys, values = (tensor.transpose(0, 1) for tensor in (query, key, value))
    outputs = []
    for start, length, *earlier in packed.segment_table.tolist():
        parts = [slice(begin, begin + size) for begin, size in (earlier[:2], earlier[2:]) if size] + [
            slice(start, start + length)
        ]
        seen_keys, seen_values = (torch.cat([each[:, part] for part in parts], 1) for each in (keys, values))
        causal = torch.ones(length, seen_keys.size(1), dtype=torch.bool).tril(seen_keys.size(1) - length)
        mask = within_window(causal, window)
        outputs.append(attention_by_products(queries[:, start : start + length], seen_keys, seen_values, mask, sinks))
    return torch.cat(outputs, 1).transpose(0, 1).flatten(1)


def attention_by_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    """Compute attention of queries over keys, with all scores in memory.

    Args:
        query: [..., heads, n, dim]; key, value: [..., heads, m, dim].
        mask: bool [..., n, m], which keys a query sees.
        sinks: [heads].

    Returns:
        [..., heads, n, dim].
    """
    scores = (query @ key.transpose(-1, -2) * query.size(-1) ** -0.5).masked_fill(~mask, -torch.inf)
    of_sinks = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    weights = torch.cat([scores, of_sinks], -1).softmax(-1)
    return weights[..., :-1] @ value


def within_window(causal: Tensor, window: int) -> Tensor:
    """Keep of a causal mask, bool [..., n, m], the last ``window`` keys that each query sees, its own among them."""
    if not window:
        return causal
    keys = torch.arange(causal.size(-1), device=causal.device)
    return causal & (causal.sum(-1, keepdim=True) - keys <= window)


def attention_by_flexible_kernel(
    query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, sinks: Tensor, window: int
) -> Tensor:
    """As :func:`attention_with_sinks`: a sink scales what attention without it gives by the share that it leaves."""
    output, normalizers = attend_with_normalizers(query, key, value, packed, window)
    left = torch.sigmoid(normalizers - sinks.float())
    return (output * left.to(output.dtype).unsqueeze(-1)).flatten(1)
