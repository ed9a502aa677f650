"""Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434), over packed rows.

Keys and values of all heads are made of one small vector a token. Here they are made whole before attention; engines keep the
small vectors in their cache. What always holds: what makes the small vectors is the same on all tensor-parallel ranks, which
divide the heads.
"""

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel import checkpoint
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from asyncrl.learners.megatron.layers.attention import PackedAttention
from asyncrl.learners.megatron.layers.norm import RMSNorm
from asyncrl.learners.megatron.layers.packed_rows import PackedRows
from asyncrl.learners.megatron.transformer import PolicyTransformerConfig


class WholeLinear(torch.nn.Linear):
    """A linear layer that each tensor-parallel rank has whole. Its gradient is summed over them, as each sees a part of the
    sequence."""

    def __init__(self, inputs: int, outputs: int, config: PolicyTransformerConfig) -> None:
        super().__init__(inputs, outputs, bias=False, dtype=config.params_dtype, device=torch.cuda.current_device())
        weight: Any = self.weight
        weight.sequence_parallel = config.sequence_parallel


class LatentAttention(MegatronModule):
    """Attention of one layer, with its projections; stands where Megatron's layer has its own."""

    def __init__(self, config: PolicyTransformerConfig, pg_collection: Any, **_: Any) -> None:
        super().__init__(config=config)
        assert config.latent is not None
        self.sizes = sizes = config.latent
        heads, hidden = config.num_attention_heads, config.hidden_size
        options = {"config": config, "init_method": config.init_method, "bias": False, "skip_bias_add": True}
        options["tp_group"] = pg_collection.tp
        if sizes.query_rank:
            self.linear_q_down_proj = WholeLinear(hidden, sizes.query_rank, config)
            self.q_layernorm = RMSNorm(config, sizes.query_rank, config.layernorm_epsilon)
            self.linear_q_up_proj = ColumnParallelLinear(sizes.query_rank, heads * sizes.query, **options)
        else:
            self.linear_q_proj = ColumnParallelLinear(hidden, heads * sizes.query, **options)
        self.linear_kv_down_proj = WholeLinear(hidden, sizes.key_value_rank + sizes.rotated, config)
        self.kv_layernorm = RMSNorm(config, sizes.key_value_rank, config.layernorm_epsilon)
        self.linear_kv_up_proj = ColumnParallelLinear(sizes.key_value_rank, heads * (sizes.plain + sizes.value), **options)
        self.core_attention = PackedAttention(config, softmax_scale=config.latent_scale)
        self.linear_proj = RowParallelLinear(heads * sizes.value, hidden, input_is_parallel=True, **options)

    def forward(self, hidden: Tensor, *_: Any, packed_seq_params: PackedRows, **__: Any) -> tuple[Tensor, None]:
        """Compute attention, from [t, 1, hidden] to the same shape, and None in place of a bias."""
        sizes = self.sizes
        query = self._queries(hidden)
        small, shared = self.linear_kv_down_proj(hidden).split([sizes.key_value_rank, sizes.rotated], -1)
        both = self.linear_kv_up_proj(self.kv_layernorm(small))[0].view(len(query), -1, sizes.plain + sizes.value)
        plain, value = both.split([sizes.plain, sizes.value], -1)
        if self.config.sequence_parallel:
            shared = gather_from_sequence_parallel_region(shared)
        key = torch.cat([_by_halves(shared).expand(-1, plain.size(1), -1), plain], -1)
        widest = max(sizes.query, sizes.value)
        wide = [F.pad(each, (0, widest - each.size(-1))) for each in (query, key, value)]
        if self.config.recompute_granularity == "selective" and self.training:
            output = checkpoint(lambda *those: self.core_attention(*those, packed_seq_params=packed_seq_params), False, *wide)
        else:
            output = self.core_attention(*wide, packed_seq_params=packed_seq_params)
        output = output.view(len(query), -1, widest)[..., : sizes.value]
        return self.linear_proj(output.reshape(len(query), 1, -1))[0], None

    def _queries(self, hidden: Tensor) -> Tensor:
        """[t, heads, channels], the rotated channels first."""
        sizes = self.sizes
        if sizes.query_rank:
            queries, _ = self.linear_q_up_proj(self.q_layernorm(self.linear_q_down_proj(hidden)))
        else:
            queries, _ = self.linear_q_proj(hidden)
        plain, rotated = queries.view(queries.size(0), -1, sizes.query).split([sizes.plain, sizes.rotated], -1)
        return torch.cat([_by_halves(rotated), plain], -1)


def _by_halves(rotated: Tensor) -> Tensor:
    """Put the channels 0, 2, 4, ... before 1, 3, 5, ...: DeepSeek rotates neighbours, and the kernels the halves of a head."""
    halves: Tensor = rotated.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return halves
