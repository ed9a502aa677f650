"""Attention over packed rows, where TransformerEngine does not compute it."""

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor

from asyncrl.learners.megatron.layers.context import SplitRows
from asyncrl.learners.megatron.layers.elementwise import rotate_beginning
from asyncrl.learners.megatron.layers.kernels import UsesKernels
from asyncrl.learners.megatron.layers.packed_rows import PackedRows
from asyncrl.learners.megatron.layers.prefix_attention import continue_prefixes
from asyncrl.learners.megatron.layers.row_moves import padded, place_rows, take_rows
from asyncrl.learners.megatron.layers.sink_attention import attention_by_products, attention_with_sinks, within_window
from asyncrl.learners.megatron.transformer import PolicyTransformerConfig


class PackedAttention(UsesKernels, MegatronModule):
    """Causal attention within each row of a packed sequence, and over the shared prefix that the row continues.

    Rotary position embedding is applied here, for all rows at once, and not by Megatron's layer, which would go row by
    row.
    """

    def __init__(
        self,
        config: PolicyTransformerConfig,
        layer_number: int = 1,
        *_: Any,
        softmax_scale: float | None = None,
        pg_collection: Any = None,
        **__: Any,
    ) -> None:
        super().__init__(config=config)
        self.softmax_scale = softmax_scale
        self.window = config.windows[layer_number - 1] if config.windows else 0
        self.softmax_offset: torch.nn.Parameter | None = None
        if config.sinks:
            self.tensor_group = pg_collection.tp
            count = config.num_attention_heads // self.tensor_group.size()
            sinks = torch.zeros(count, dtype=config.params_dtype, device=torch.cuda.current_device())
            self.softmax_offset = torch.nn.Parameter(sinks)
            set_tensor_model_parallel_attributes(self.softmax_offset, is_parallel=True, dim=0, stride=1)

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
        query, key = (rotate_beginning(self.kernels.rotate, tensor, cosine, sine) for tensor in (query, key))
        return self.attend(query, key, value, packed_seq_params)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, packed: PackedRows) -> Tensor:
        """As :meth:`forward`, of queries and keys that are rotated already. They may have another data type than values, in which
        attention is computed then."""
        dtype = value.dtype
        value = value.to(query.dtype)
        if isinstance(packed, SplitRows):
            return self._over_context(query, key, value, packed).to(dtype)
        if self.softmax_offset is not None:
            return attention_with_sinks(query, key, value, packed, self.softmax_offset, self.window).to(dtype)
        return self.kernels.attention(query, key, value, packed, self.softmax_scale).to(dtype)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """What a checkpoint holds of the layer: its sinks, which tensor-parallel ranks divide; the name is Megatron's."""
        if self.softmax_offset is None:
            return {}
        state: dict[str, Any] = make_sharded_tensors_for_checkpoint(
            {"softmax_offset": self.softmax_offset},
            prefix,
            {"softmax_offset": 0},
            sharded_offsets,
            tp_group=self.tensor_group,
            dp_cp_group=(metadata or {}).get("dp_cp_group") or parallel_state.get_data_parallel_group(with_context_parallel=True),
        )
        return state

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
                output = self._of_chunk(queries, seen_keys, seen_values, chunk.mask)
                parts.append(take_rows(output.transpose(1, 2).reshape(block.rows * chunk.longest, -1), chunk.slots))
                tokens.append(chunk.tokens)
        return place_rows(torch.cat(parts), torch.cat(tokens), query.size(0))

    def _of_chunk(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        if self.softmax_offset is None:
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=self.softmax_scale)
        return attention_by_products(query, key, value, within_window(mask, self.window), self.softmax_offset)


def attention_by_torch(query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, scale: float | None) -> Tensor:
    """Compute attention of each token over its row, and over the preamble and shared prefix that the row continues. Arguments as
    in :func:`attention_in_blocks`."""
    return (continue_prefixes if packed.prefixes else attention_in_blocks)(query, key, value, packed, scale)


def attention_in_blocks(query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, scale: float | None) -> Tensor:
    """Compute attention of each token over its row by torch's kernel, for rows of similar length at once. Padding is at the end
    of a row, where the causal mask hides it from every real token.

    Args:
        query: [t, heads, dim]; key, value: [t, query groups, dim]; query and key are already rotated.
        packed: how the rows lie in the packed sequence; without shared prefixes.
        scale: factor of the products; None for ``1 / sqrt(dim)``.

    Returns:
        [t, heads * dim].
    """
    repeats = query.size(1) // key.size(1)
    # In half precision, torch's kernels for GPUs read a group for all its heads. In float32, it would make all scores at once.
    grouped = repeats > 1 and query.is_cuda and query.dtype is not torch.float32
    if repeats > 1 and not grouped:
        key, value = (tensor.repeat_interleave(repeats, 1) for tensor in (key, value))
    segments = packed.padded_segments
    of_blocks = [
        F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scale, enable_gqa=grouped)
        for queries, keys, values in zip(*map(segments.pad, (query, key, value)), strict=True)
    ]
    return segments.unpad(of_blocks).flatten(1)
