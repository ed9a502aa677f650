"""Translates a Hugging Face folder's ``config.json`` into Megatron's configuration, for the supported architectures
only."""

import math
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from asyncrl.core.architectures.architecture import Architecture, LatentSizes
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.learners.batches.micro_batch import Routing
from asyncrl.learners.flops import ProductShapes
from asyncrl.learners.megatron.engine import engine_layers
from asyncrl.learners.megatron.layers.weight_gradients import added_in_products
from asyncrl.learners.megatron.transformer import PolicyTransformerConfig
from asyncrl.learners.supported_model import SCALED_ROPE, description_of, supported_config

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class PolicyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed to build the policy on one rank.

    Attributes:
        transformer: Megatron's configuration.
        architecture: the model's tensors.
        tied: whether the output layer is the embedding.
        inverse_frequencies: float32 [d / 2], of the rotary position embedding, with scaling applied; d channels of each head are
            rotated.
        rotation_scale: factor of rotated queries and keys; 1 unless the embedding is YaRN's.
        max_positions: longest row that the model was made for.
        routing: how many experts tokens go to, in how many layers; None in a model without experts.
    """

    transformer: PolicyTransformerConfig
    architecture: Architecture
    tied: bool
    inverse_frequencies: Tensor
    rotation_scale: float
    max_positions: int
    routing: Routing | None = None


def product_shapes(config: PolicyConfig) -> ProductShapes:
    """The sizes that decide the policy's FLOPs."""
    transformer = config.transformer
    hidden = transformer.hidden_size
    dense, mixture = 3 * hidden * transformer.ffn_hidden_size, 0
    if transformer.num_moe_experts is not None:
        shared = config.architecture.shared_size
        per_token = transformer.moe_ffn_hidden_size * transformer.moe_router_topk + shared
        mixture = hidden * (transformer.num_moe_experts + (bool(shared) and transformer.moe_shared_expert_gate) + 3 * per_token)
    return ProductShapes(
        hidden=hidden,
        heads=transformer.num_attention_heads,
        query_groups=transformer.num_query_groups,
        feed_forward=tuple(mixture if has_experts(transformer, layer) else dense for layer in range(transformer.num_layers)),
        outputs=config.architecture.vocabulary,
        windows=transformer.windows,
        **{"head_dim": transformer.kv_channels, **_latent_products(config.architecture)},
    )


def _latent_products(architecture: Architecture) -> dict[str, int]:
    """What of :class:`.flops.ProductShapes` is another for latent attention."""
    latent = architecture.latent
    if latent is None:
        return {}
    attention = [tensor.shape for tensor in architecture.tensors() if tensor.layer == 0 and ".self_attn." in tensor.name]
    weights = sum(math.prod(shape) for shape in attention if len(shape) > 1)
    return {"projections": weights, "head_dim": latent.query, "value_dim": latent.value}


def has_experts(transformer: TransformerConfig, layer: int) -> bool:
    """Whether ``layer``, counted from 0 over the whole model, is a mixture of experts."""
    if transformer.num_moe_experts is None:
        return False
    return transformer.moe_layer_freq == 1 or bool(transformer.moe_layer_freq[layer])


def policy_config(folder: Path, learner: LearnerConfig) -> PolicyConfig:
    """Read the configuration in ``folder`` for the parallel layout and data type of ``learner``.

    Raises:
        RecipeError: see :func:`asyncrl.learners.supported_model.supported_config`.
    """
    source = supported_config(folder, learner)
    architecture = description_of(source).architecture(source)
    mixture = description_of(source).mixture(source)
    frequencies, scale = _rotation(source, architecture.head_size)
    return PolicyConfig(
        transformer=_transformer_config(source, architecture, learner),
        architecture=architecture,
        tied=architecture.tied,
        inverse_frequencies=frequencies,
        rotation_scale=scale,
        max_positions=source.max_position_embeddings,
        routing=Routing(mixture.experts, sum(mixture.layers), mixture.per_token) if any(mixture.layers) else None,
    )


def _transformer_config(source: PreTrainedConfig, architecture: Architecture, learner: LearnerConfig) -> PolicyTransformerConfig:
    dtype = _DTYPES[learner.dtype]
    on_engine = architecture.latent is None and not architecture.sinks and engine_layers(dtype)
    return PolicyTransformerConfig(
        latent=architecture.latent,
        latent_scale=None if architecture.latent is None else _latent_scale(source, architecture.latent),
        num_layers=architecture.layers,
        hidden_size=architecture.hidden_size,
        ffn_hidden_size=architecture.intermediate_size,
        num_attention_heads=architecture.heads,
        num_query_groups=architecture.key_value_heads,
        kv_channels=architecture.head_size,
        normalization="RMSNorm",
        layernorm_epsilon=source.rms_norm_eps,
        gated_linear_unit=True,
        activation_func=F.silu,
        sinks=architecture.sinks,
        windows=_windows(source) if architecture.sinks else (),
        add_bias_linear=architecture.output_bias,
        add_qkv_bias=architecture.biases,
        qk_layernorm=architecture.head_norms,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        fp8=None if learner.fp8 == "none" else learner.fp8,
        # Scales are computed from the tensors as they are. Others need a history, which a checkpoint would have to
        # hold.
        fp8_recipe="tensorwise",
        # Needed although all weights are loaded: only the initialisation marks parameters as split over tensor-parallel
        # ranks, and an unmarked parameter would be left out of the gradient norm on all ranks except the first.
        perform_initialization=True,
        use_cpu_initialization=not torch.cuda.is_available(),
        tensor_model_parallel_size=learner.tensor_parallel,
        pipeline_model_parallel_size=learner.pipeline_parallel,
        context_parallel_size=learner.context_parallel,
        virtual_pipeline_model_parallel_size=learner.virtual_pipeline if learner.virtual_pipeline > 1 else None,
        sequence_parallel=learner.tensor_parallel > 1,
        variable_seq_lengths=learner.pipeline_parallel > 1,
        # Read by dense models too: with variable lengths Megatron refuses the default.
        moe_token_dispatcher_type="alltoall",
        **_expert_options(source, architecture, learner, grouped=on_engine),
        recompute_granularity=None if learner.recompute == "none" else learner.recompute,
        recompute_method="uniform" if learner.recompute == "full" else None,
        recompute_num_layers=1 if learner.recompute == "full" else None,
        # Each of these three gives wrong gradients, without an error, with some schedule or with gloo.
        batch_p2p_comm=False,
        overlap_p2p_comm=False,
        deallocate_pipeline_outputs=False,
        # The loss divides by the batch's own denominator: Megatron must not average over micro-batches or replicas.
        calculate_per_token_loss=True,
        # All of these compile on first use, which takes longer than a whole run of a small model on a CPU. The two that are
        # on under TransformerEngine are kernels; without the second, Megatron waits for the GPU four times a layer.
        persist_layer_norm=False,
        bias_activation_fusion=on_engine,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=added_in_products(engine_layers=on_engine),
        apply_rope_fusion=on_engine,
    )


def _expert_options(
    source: PreTrainedConfig, architecture: Architecture, learner: LearnerConfig, *, grouped: bool
) -> dict[str, Any]:
    """Options of a mixture of experts in which every token reaches all experts that it is routed to.

    A loss that balances the experts is a function of all tokens of a micro-batch together, so it depends on how the batch is
    divided. Without ``learner.experts.balance`` there is none.
    """
    mixture = description_of(source).mixture(source)
    if not any(mixture.layers):
        return {}
    return {
        "num_moe_experts": mixture.experts,
        "moe_router_topk": mixture.per_token,
        "moe_ffn_hidden_size": mixture.channels,
        "moe_shared_expert_intermediate_size": mixture.shared or None,
        "moe_shared_expert_gate": mixture.shared > 0 and bool(architecture.expert_names.shared_gate),
        "moe_router_score_function": "sigmoid" if mixture.sigmoid else "softmax",
        "moe_router_topk_scaling_factor": mixture.scale if mixture.scale != 1 else None,
        "moe_router_num_groups": mixture.groups if mixture.groups > 1 else None,
        "moe_router_group_topk": mixture.chosen_groups if mixture.groups > 1 else None,
        "moe_router_enable_expert_bias": bool(architecture.expert_names.choice_bias),
        # Megatron would change the bias with each gradient, also one that no optimizer step uses; see :mod:`.layers.routing`.
        "moe_router_bias_update_rate": 0.0,
        # A single number if all layers are alike, because Megatron names a checkpoint's tensors differently for a list.
        "moe_layer_freq": 1 if all(mixture.layers) else [int(has) for has in mixture.layers],
        # The softmax over only the chosen experts equals the softmax over all experts, normalised again.
        "moe_router_pre_softmax": not mixture.normalised and not mixture.sigmoid,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "aux_loss" if learner.experts.balance == "aux" else "none",
        # Each micro-batch brings its own; see :mod:`.layers.routing`.
        "moe_aux_loss_coeff": 0.0,
        # All experts of a rank in one product, instead of one after another.
        "moe_grouped_gemm": grouped,
        "expert_model_parallel_size": learner.expert_parallel,
        "expert_tensor_parallel_size": learner.expert_tensor_parallel,
    }


def _windows(source: PreTrainedConfig) -> tuple[int, ...]:
    """How many keys each layer's attention sees at most; 0 for all."""
    return tuple(source.sliding_window if kind == "sliding_attention" else 0 for kind in source.layer_types)


def _latent_scale(source: PreTrainedConfig, latent: LatentSizes) -> float:
    """The factor of products of queries and keys in latent attention. With YaRN it grows with the context, as in Hugging Face and
    vLLM."""
    scale = float(latent.query**-0.5)
    rope = source.rope_parameters
    all_dimensions = rope.get("mscale_all_dim") or 0
    if rope.get("rope_type", "default") == "default" or not all_dimensions or rope["factor"] <= 1:
        return scale
    growth = 0.1 * all_dimensions * math.log(rope["factor"]) + 1.0
    return float(scale * growth * growth)


def _rotation(source: PreTrainedConfig, head_size: int) -> tuple[Tensor, float]:
    """Inverse frequencies, and the factor of what is rotated, as Hugging Face computes them. Megatron's own scaling knows only
    one of Llama's four parameters."""
    rope = source.rope_parameters
    if rope.get("rope_type", "default") in SCALED_ROPE:
        scaled: tuple[Tensor, float] = ROPE_INIT_FUNCTIONS[rope["rope_type"]](source, torch.device("cpu"))
        return scaled
    rotated = int(head_size * (rope.get("partial_rotary_factor") or 1.0))
    exponents = torch.arange(0, rotated, 2, dtype=torch.int64).float() / rotated
    base: float = rope["rope_theta"]
    return 1.0 / (base**exponents), 1.0
