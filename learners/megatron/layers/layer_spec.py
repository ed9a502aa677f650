"""The transformer layer: TransformerEngine's on a GPU that has it, otherwise Megatron's with norm and attention of our
own."""

import importlib
from typing import Any

import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_layer import (
    TransformerLayer,
    TransformerLayerSubmodules,
    get_transformer_layer_offset,
)
from torch import Tensor

from asyncrl.learners.megatron.engine import engine_layers, why_unusable
from asyncrl.learners.megatron.layers.attention import PackedAttention
from asyncrl.learners.megatron.layers.experts import Experts, Router, SharedExpert
from asyncrl.learners.megatron.layers.kernels import UsesKernels
from asyncrl.learners.megatron.layers.latent_attention import LatentAttention
from asyncrl.learners.megatron.layers.norm import RMSNorm
from asyncrl.learners.megatron.layers.packed_rows import PackedRows
from asyncrl.learners.megatron.layers.row_moves import take_rows
from asyncrl.learners.megatron.layers.self_attention import ProjectedAttention
from asyncrl.learners.megatron.model_config import has_experts
from asyncrl.learners.megatron.transformer import PolicyTransformerConfig
from asyncrl.learners.supported_model import fp8_refusal

_FP8_CAPABILITY = (8, 9)
"""Compute capability of the oldest GPUs with fp8 matrix products."""


def block_spec(config: PolicyTransformerConfig, chunk: int | None) -> TransformerBlockSubmodules:
    """The layers of this pipeline stage, or of one of its chunks, and the final norm."""
    if uses_transformer_engine(config):
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=True, vp_stage=chunk)
        attention = importlib.import_module("asyncrl.learners.megatron.layers.engine_attention").EngineAttention
        for layer in spec.layer_specs:
            layer.submodules.self_attention.submodules.core_attention = attention
        return spec
    first = get_transformer_layer_offset(config, chunk)
    layers = range(first, first + get_num_layers_to_build(config, chunk))
    return TransformerBlockSubmodules(layer_specs=[_layer_spec(config, layer) for layer in layers], layer_norm=RMSNorm)


def uses_transformer_engine(config: PolicyTransformerConfig) -> bool:
    """Whether the layers are TransformerEngine's; see :func:`.engine.engine_layers`."""
    return config.latent is None and not config.sinks and engine_layers(config.params_dtype)


def check_fp8(config: PolicyTransformerConfig) -> None:
    """Check that this host can multiply matrices in fp8, if ``config`` asks for it.

    Raises:
        RecipeError: if it cannot.
    """
    if config.fp8 is None:
        return
    lacking = ""
    if not torch.cuda.is_available():
        lacking = "this host has no GPU"
    elif not uses_transformer_engine(config):
        lacking = f"TransformerEngine cannot be used: {why_unusable()}"
    elif torch.cuda.get_device_capability() < _FP8_CAPABILITY:
        lacking = f"{torch.cuda.get_device_name()} has none"
    if lacking:
        raise fp8_refusal(config.fp8, lacking)


class GatedMLP(UsesKernels, MLP):
    """Megatron's feed-forward block with gated SiLU and no biases. Its activation is computed in fewer passes over
    memory."""

    def __init__(self, config: PolicyTransformerConfig, **_: Any) -> None:
        super().__init__(config, MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear))

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        """Compute the block's output, from [t, 1, hidden] to the same shape, and None in place of a bias."""
        gate_up, _ = self.linear_fc1(hidden_states)
        output, _ = self.linear_fc2(self.kernels.gated_silu(gate_up))
        return output, None


class LastLayer(TransformerLayer):
    """The model's last layer. Its feed-forward block computes only the hidden states that are needed."""

    def forward(self, *arguments: Any, packed_seq_params: PackedRows, **options: Any) -> tuple[Tensor, Tensor | None]:
        """Compute the layer's output, from [t, 1, hidden] to [n, 1, hidden] of the tokens that
        ``packed_seq_params.predicting`` names, or of all."""
        hidden, context = self._forward_attention(*arguments, packed_seq_params=packed_seq_params, **options)
        if packed_seq_params.predicting is not None:
            hidden = take_rows(hidden, packed_seq_params.predicting)
        return self._forward_mlp(hidden), context


def gives_predicting_only(config: PolicyTransformerConfig) -> bool:
    """Whether the last layer can leave out tokens: where a rank has the hidden states of all, and they go to no experts."""
    divided = config.sequence_parallel or config.context_parallel_size > 1
    return not (divided or uses_transformer_engine(config) or has_experts(config, config.num_layers - 1))


def _layer_spec(config: PolicyTransformerConfig, layer: int) -> ModuleSpec:
    qk_norm = RMSNorm if config.qk_layernorm else IdentityOp
    attention = SelfAttentionSubmodules(
        linear_qkv=ColumnParallelLinear,
        core_attention=PackedAttention,
        linear_proj=RowParallelLinear,
        q_layernorm=qk_norm,
        k_layernorm=qk_norm,
    )
    of_heads = ModuleSpec(module=ProjectedAttention, params={"attn_mask_type": AttnMaskType.causal}, submodules=attention)
    # The names in TransformerEngine's layer, so that checkpoints of CPU and GPU runs are interchangeable.
    names = {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}
    mlp: type | ModuleSpec = GatedMLP
    if has_experts(config, layer):
        shared = SharedExpert if config.moe_shared_expert_intermediate_size else None
        submodules = MoESubmodules(experts=Experts, router=Router, shared_experts=shared)
        mlp = ModuleSpec(module=MoELayer, submodules=submodules)
    else:
        names["pre_mlp_layernorm."] = "mlp.linear_fc1.layer_norm_"
    return ModuleSpec(
        module=LastLayer if layer == config.num_layers - 1 and gives_predicting_only(config) else TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=RMSNorm,
            self_attention=of_heads if config.latent is None else ModuleSpec(module=LatentAttention),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=RMSNorm,
            mlp=mlp,
            mlp_bda=get_bias_dropout_add,
            sharded_state_dict_keys_map=names,
        ),
    )
