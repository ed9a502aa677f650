"""TransformerEngine's attention, except where rows continue a shared prefix. Imported only where TransformerEngine is
installed."""

from typing import Any

from megatron.core.extensions.transformer_engine import TEDotProductAttention
from torch import Tensor

from asyncrl.learners.megatron.layers.compiled import rotate
from asyncrl.learners.megatron.layers.elementwise import rotate_beginning
from asyncrl.learners.megatron.layers.packed_rows import PackedRows
from asyncrl.learners.megatron.layers.prefix_attention import continue_prefixes


class EngineAttention(TEDotProductAttention):
    """Attention by TransformerEngine's kernels, which know rows but no prefixes. A micro-batch with prefixes goes to
    our own attention. Queries and keys are rotated here if Megatron's layer does not."""

    def __init__(self, *arguments: Any, softmax_scale: float | None = None, **options: Any) -> None:
        super().__init__(*arguments, softmax_scale=softmax_scale, **options)
        self._scale = softmax_scale

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, packed_seq_params: PackedRows, **options: Any
    ) -> Tensor:
        """Compute attention of each token over its row. Arguments as in :meth:`.attention.PackedAttention.forward`,
        except that query and key are already rotated if there is no rotation."""
        if packed_seq_params.rotation is not None:
            query, key = (rotate_beginning(rotate, tensor, *packed_seq_params.rotation) for tensor in (query, key))
        if packed_seq_params.prefixes:
            return continue_prefixes(query, key, value, packed_seq_params, self._scale)
        output: Tensor = super().forward(query, key, value, *rest, packed_seq_params=packed_seq_params, **options)
        return output
