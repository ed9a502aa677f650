"""Attention with its projections, where TransformerEngine does not compute it."""

from typing import Any

from megatron.core.tensor_parallel import checkpoint
from megatron.core.transformer.attention import SelfAttention
from torch import Tensor

from asyncrl.learners.megatron.layers.kernels import UsesKernels
from asyncrl.learners.megatron.layers.packed_rows import PackedRows


class ProjectedAttention(UsesKernels, SelfAttention):
    """Megatron's attention block. Where one function makes queries, keys and values of what the projection gives, it takes the
    place of copies, norms and rotations one after another."""

    def forward(
        self, hidden_states: Tensor, *arguments: Any, packed_seq_params: PackedRows, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention, from [t, 1, hidden] to the same shape, and the bias that is still to be added."""
        heads = self.kernels.heads
        # With fewer groups than ranks, several ranks share the keys and values of a group, which Megatron sees to.
        if heads is None or self.config.num_query_groups < self.world_size:
            output, bias = super().forward(hidden_states, *arguments, packed_seq_params=packed_seq_params, **options)
            return output, bias
        assert packed_seq_params.rotation is not None
        projected = self.linear_qkv(hidden_states)[0].view(
            -1, self.num_query_groups_per_partition, self._heads_of_group, self.hidden_size_per_attention_head
        )
        norms = (self.q_layernorm.weight, self.k_layernorm.weight) if self.config.qk_layernorm else None
        made = heads(projected, packed_seq_params.rotation, norms, self.config.layernorm_epsilon)
        attend = self.core_attention.attend
        if self.checkpoint_core_attention and self.training:
            attended = checkpoint(lambda *those: attend(*those, packed_seq_params), False, *made)
        else:
            attended = attend(*made, packed_seq_params)
        output, bias = self.linear_proj(attended.unsqueeze(1))
        return output, bias

    @property
    def _heads_of_group(self) -> int:
        """Heads of queries, and one of keys and one of values."""
        queries: int = self.num_attention_heads_per_partition // self.num_query_groups_per_partition
        return queries + 2
