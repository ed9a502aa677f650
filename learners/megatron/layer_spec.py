"""The transformer layer: TransformerEngine's on a GPU that has it, else Megatron's with norm and attention of plain torch."""

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from torch import Tensor

from learners.megatron.elementwise import gated_silu, rms_norm, rotate
from learners.megatron.packed_rows import Bucket, PackedRows
from learners.megatron.row_moves import place_rows, take_rows


def block_spec(config: TransformerConfig) -> TransformerBlockSubmodules:
    """The layers of this pipeline stage and the final norm."""
    if has_transformer_engine():
        return get_gpt_decoder_block_spec(config, use_transformer_engine=True)
    return TransformerBlockSubmodules(layer_specs=[_layer_spec(config)] * get_num_layers_to_build(config), layer_norm=RMSNorm)


def has_transformer_engine() -> bool:
    """Whether the layers are TransformerEngine's."""
    # The GPU is asked for first: on a host without one the package may be installed, and its import then fails in many ways.
    if not torch.cuda.is_available():
        return False
    try:
        importlib.import_module("transformer_engine.pytorch")
    except (ImportError, RuntimeError, OSError):
        return False
    return True


class RMSNorm(torch.nn.RMSNorm):
    """Root-mean-square norm whose gradient is summed over tensor-parallel ranks, each of which sees a part of the sequence."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype, device=torch.cuda.current_device())
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, values: Tensor) -> Tensor:
        """See :func:`.elementwise.rms_norm`."""
        return rms_norm(values, self.weight, self.eps)


class GatedMLP(MLP):
    """Megatron's feed-forward block with gated SiLU and no biases, its activation computed in fewer passes."""

    def __init__(self, config: TransformerConfig, **options: Any) -> None:
        super().__init__(config, MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear), **options)

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        """[t, 1, hidden] to the same, and no bias."""
        gate_up, _ = self.linear_fc1(hidden_states)
        return self.linear_fc2(gated_silu(gate_up))


class PackedAttention(MegatronModule):
    """Causal attention within each row of a packed sequence, by torch's scaled dot product attention.

    Rows of like length are computed as one padded block, because a call for each row of a hundred tokens would cost more than its
    mathematics. Padding stands at the end of a row, where a causal mask hides it from every real token.
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


def _layer_spec(config: TransformerConfig) -> ModuleSpec:
    qk_norm = RMSNorm if config.qk_layernorm else IdentityOp
    attention = SelfAttentionSubmodules(
        linear_qkv=ColumnParallelLinear,
        core_attention=PackedAttention,
        linear_proj=RowParallelLinear,
        q_layernorm=qk_norm,
        k_layernorm=qk_norm,
    )
    return ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=RMSNorm,
            self_attention=ModuleSpec(module=SelfAttention, params={"attn_mask_type": AttnMaskType.causal}, submodules=attention),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=RMSNorm,
            mlp=GatedMLP,
            mlp_bda=get_bias_dropout_add,
            # The TransformerEngine layer's names, so that checkpoints of CPU and GPU runs are interchangeable.
            sharded_state_dict_keys_map={
                "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
                "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
            },
        ),
    )
