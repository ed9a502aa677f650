"""Attention over packed rows in plain torch."""

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from learners.megatron.elementwise import rotate
from learners.megatron.packed_rows import Bucket, PackedRows
from learners.megatron.row_moves import place_rows, take_rows


class PackedAttention(MegatronModule):
    """Causal attention within each row of a packed sequence, by torch's scaled dot product attention.

    Rows of like length are computed as one padded block, because a call for each row of a hundred tokens would cost more than its
    mathematics. Padding stands at the end of a row, where a causal mask hides it from every real token.

    Rotary position embedding is applied here, for all rows at once, and not by the layer, which would go row by row.
    """

    def __init__(self, config: TransformerConfig, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__(config=config)
        self.softmax_scale = softmax_scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, packed_seq_params: PackedRows, **__: Any) -> Tensor:
        """Attention of every token over its row.

        Args:
            query: [t, heads, dim]; key, value: [t, query groups, dim]; query and key not yet rotated.

        Returns:
            [t, heads * dim].
        """
        heads = query.size(1)
        cosine, sine = packed_seq_params.rotation
        query, key = (rotate(tensor, cosine, sine) for tensor in (query, key))
        parts = []
        for bucket in packed_seq_params.buckets:
            block = [self._padded(tensor[bucket.start : bucket.end], bucket, heads) for tensor in (query, key, value)]
            output = F.scaled_dot_product_attention(*block, is_causal=True, scale=self.softmax_scale)
            flat = output.transpose(1, 2).reshape(bucket.rows * bucket.longest, -1)
            parts.append(flat if bucket.slots is None else take_rows(flat, bucket.slots))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    @staticmethod
    def _padded(tensor: Tensor, bucket: Bucket, heads: int) -> Tensor:
        """[tokens, groups, dim] as [rows, heads, longest, dim], each group repeated for its heads.

        Repeated here and not by ``enable_gqa``, with which torch leaves its fused CPU kernel.
        """
        if bucket.slots is not None:
            tensor = place_rows(tensor, bucket.slots, bucket.rows * bucket.longest)
        groups, dim = tensor.shape[1:]
        block = tensor.reshape(bucket.rows, bucket.longest, groups, dim).transpose(1, 2)
        if groups == heads:
            return block
        repeated = block.unsqueeze(2).expand(-1, -1, heads // groups, -1, -1)
        return repeated.reshape(bucket.rows, heads, bucket.longest, dim)
