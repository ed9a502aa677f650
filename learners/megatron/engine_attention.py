"""TransformerEngine's attention, but where rows continue a shared prefix. Imported only where TransformerEngine is."""

from typing import Any

from megatron.core.extensions.transformer_engine import TEDotProductAttention
from torch import Tensor

from learners.megatron.elementwise import rotate
from learners.megatron.packed_rows import PackedRows
from learners.megatron.prefix_attention import continue_prefixes


class EngineAttention(TEDotProductAttention):
    """Its kernels know rows but no prefixes: a micro-batch with prefixes goes to ours, which also rotates queries and keys."""

    def __init__(self, *arguments: Any, softmax_scale: float | None = None, **options: Any) -> None:
        super().__init__(*arguments, softmax_scale=softmax_scale, **options)
        self._scale = softmax_scale

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, packed_seq_params: PackedRows, **options: Any
    ) -> Tensor:
        """Attention of each token over its row; arguments as of :meth:`.attention.PackedAttention.forward`, but that without
        prefixes query and key have been rotated."""
        if packed_seq_params.rotation is not None:
            query, key = (rotate(tensor, *packed_seq_params.rotation) for tensor in (query, key))
            return continue_prefixes(query, key, value, packed_seq_params, self._scale)
        output: Tensor = super().forward(query, key, value, *rest, packed_seq_params=packed_seq_params, **options)
        return output
