"""Attention over packed rows, where TransformerEngine does not compute it."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from learners.megatron.cpu.piece_speed import made_values, ours_is_faster
from learners.megatron.layers.context import SplitRows
from learners.megatron.layers.elementwise import rotate
from learners.megatron.layers.packed_rows import PackedRows
from learners.megatron.layers.prefix_attention import continue_prefixes
from learners.megatron.layers.row_moves import padded, place_rows, take_rows

_MEASURED_ROWS, _MEASURED_TOKENS = 4, 256
"""Rows that attention is measured on, and tokens of each."""


class PackedAttention(MegatronModule):
    """Causal attention within each row of a packed sequence, and over the shared prefix that the row continues.

    On a CPU, code of our own computes it (:mod:`learners.megatron.cpu.cpu_attention`), in float32, whatever the tensors are. On a
    GPU, and on a CPU whose processor is measured to be faster with torch, rows of similar length are one padded block of torch's
    scaled dot product attention. Padding is at the end of a row, where the causal mask hides it from every real token. With
    shared prefixes, see :mod:`.prefix_attention`.

    Rotary position embedding is applied here, for all rows at once, and not by Megatron's layer, which would go row by
    row.
    """

    def __init__(self, config: TransformerConfig, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__(config=config)
        self.softmax_scale = softmax_scale
        if not torch.cuda.is_available():
            from learners.megatron.cpu.cpu_attention import prepare

            sizes = config.num_attention_heads, config.num_query_groups or config.num_attention_heads, config.kv_channels
            prepare(*sizes)
            self._ours_pays = ours_pays(*sizes)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, packed_seq_params: PackedRows, **__: Any) -> Tensor:
        """Compute attention of each token over its row.

        Args:
            query: [t, heads, dim]; key, value: [t, query groups, dim]; query and key are not yet rotated.
            packed_seq_params: how the rows lie in the packed sequence; has the rotation.

        Returns:
            [t, heads * dim].
        """
        assert packed_seq_params.rotation is not None
        cosine, sine = packed_seq_params.rotation
        query, key = (rotate(tensor, cosine, sine) for tensor in (query, key))
        dtype = value.dtype
        return self._attention(query, key, value.to(query.dtype), packed_seq_params).to(dtype)

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, packed_seq_params: PackedRows) -> Tensor:
        if isinstance(packed_seq_params, SplitRows):
            return self._over_context(query, key, value, packed_seq_params)
        if not query.is_cuda and (packed_seq_params.prefixes or self._ours_pays):
            from learners.megatron.cpu.cpu_attention import attention_on_cpu  # imports LLVM, which a host with a GPU may lack

            return attention_on_cpu(query, key, value, packed_seq_params.segment_table, self.softmax_scale).flatten(1)
        if packed_seq_params.prefixes:
            return continue_prefixes(query, key, value, packed_seq_params, self.softmax_scale)
        return attention_in_blocks(query, key, value, packed_seq_params, self.softmax_scale)

    def _over_context(self, query: Tensor, key: Tensor, value: Tensor, split: SplitRows) -> Tensor:
        """Compute attention of this rank's tokens over their rows. All context-parallel ranks gather the rows' keys and
        values.

        Each chunk of a row sees no more keys than causality allows, so that no rank computes more than another.
        """
        heads, dim = query.shape[1:]
        # The gradients of a key come from all ranks whose queries saw it. The backward of the gather adds them up.
        both = gather_from_sequence_parallel_region(
            torch.cat([key, value], -1), group=parallel_state.get_context_parallel_group()
        )
        parts, tokens = [], []
        for block in split.blocks:
            rows = take_rows(both, block.keys)
            keys, values = padded(rows, block.slots, block.rows, block.longest, heads).split(dim, -1)
            for chunk in block.queries:
                queries = padded(take_rows(query, chunk.tokens), chunk.slots, block.rows, chunk.longest, heads)
                seen_keys, seen_values = keys[:, :, : chunk.reach], values[:, :, : chunk.reach]
                output = F.scaled_dot_product_attention(
                    queries, seen_keys, seen_values, attn_mask=chunk.mask, scale=self.softmax_scale
                )
                parts.append(take_rows(output.transpose(1, 2).reshape(block.rows * chunk.longest, -1), chunk.slots))
                tokens.append(chunk.tokens)
        return place_rows(torch.cat(parts), torch.cat(tokens), query.size(0))


@cache
def ours_pays(heads: int, groups: int, dim: int) -> bool:
    """Return whether our own code computes the attention of rows on this processor, and not torch's kernel, with so many heads,
    key heads and channels. What continues a shared prefix is always computed by our own, since torch has no kernel for it."""
    from learners.megatron.cpu.cpu_attention import attention_on_cpu

    packed = PackedRows.of([_MEASURED_TOKENS] * _MEASURED_ROWS, torch.device("cpu"))
    tokens = _MEASURED_TOKENS * _MEASURED_ROWS
    query, key, value = (made_values(tokens, count, dim) for count in (heads, groups, groups))

    def passes(attention: Callable[[], Tensor]) -> Callable[[], object]:
        def run() -> None:
            output = attention()
            torch.autograd.grad(output, (query, key, value), torch.ones_like(output))

        return run

    ours = passes(lambda: attention_on_cpu(query, key, value, packed.segment_table))
    torchs = passes(lambda: attention_in_blocks(query, key, value, packed, None))
    return ours_is_faster(f"attention of {heads} heads, {groups} key heads, {dim} channels", ours, torchs)


def attention_in_blocks(query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, scale: float | None) -> Tensor:
    """Compute attention of each token over its row by torch's kernel, for rows of similar length at once.

    Args:
        query: [t, heads, dim]; key, value: [t, query groups, dim]; query and key are already rotated.
        packed: how the rows lie in the packed sequence; without shared prefixes.
        scale: factor of the products; None for ``1 / sqrt(dim)``.

    Returns:
        [t, heads * dim].
    """
    if (repeats := query.size(1) // key.size(1)) > 1:
        key, value = (tensor.repeat_interleave(repeats, 1) for tensor in (key, value))
    segments = packed.padded_segments
    of_blocks = [
        F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scale)
        for queries, keys, values in zip(*map(segments.pad, (query, key, value)), strict=True)
    ]
    return segments.unpad(of_blocks).flatten(1)
