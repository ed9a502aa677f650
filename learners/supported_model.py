"""What the learner takes of a Hugging Face folder's configuration, as transformers reads it. Needs no torch.

The dry run and each rank both use it, so that neither refuses what the other takes.
"""

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.core.architectures.architecture import WITH_BIASES, WITH_HEAD_NORMS
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.rules.experts import expert_layers
from asyncrl.core.recipe.rules.model import (
    MODEL_TYPES,
    WITH_EXPERTS,
    check_architecture,
    check_layout,
    check_positive,
    check_routing,
)
from learners.batches.packing import FP8_MULTIPLE

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "decoder_sparse_step",
)
SCALED_ROPE = ("linear", "llama3")
"""The scaled rotary position embeddings that the learner computes."""
_MEGATRON = ("0.16.1",)
"""Versions of megatron-core whose internals the learner knows."""


def check_megatron() -> None:
    """Check that the installed version of megatron-core is one that has been tested; a ``RecipeError`` says which are."""
    try:
        version = importlib.metadata.version("megatron-core")
    except importlib.metadata.PackageNotFoundError:
        version = "no version"
    if version not in _MEGATRON:
        known = ", ".join(_MEGATRON)
        problem = f"megatron-core {version} is installed, but the learner is tested with {known} only"
        raise RecipeError("learner", problem, f"install megatron-core=={_MEGATRON[-1]}")


def fp8_refusal(fp8: str, lacking: str) -> RecipeError:
    """Return the refusal of fp8 products for want of something."""
    return RecipeError(
        "learner.fp8",
        f"{fp8} products need TransformerEngine and a GPU of compute capability 8.9 or newer, and {lacking}",
        "set it to none, or run the learner on such GPUs with asyncrl[gpu] installed",
    )


def supported_config(folder: Path, learner: LearnerConfig, *, quantised: bool = False) -> "PreTrainedConfig":
    """Read the configuration in ``folder``, and check it for the parallel layout and data type of ``learner``.

    Args:
        quantised: whether its weights may be quantised, because the learner will be given the folder of them dequantised.

    Raises:
        RecipeError: if the architecture, or a variant of it that the folder asks for, is not supported; or if the
            parallel layout cannot divide it.
    """
    from transformers import AutoConfig  # takes a second

    try:
        source: PreTrainedConfig = AutoConfig.from_pretrained(folder)
    except Exception as error:
        raise RecipeError(
            "model.path",
            f"{folder} holds no readable Hugging Face config.json: {error}",
            "name the folder of a Hugging Face model",
        ) from error
    _check_supported(source, quantised)
    check_layout(
        learner,
        heads=source.num_attention_heads,
        key_value_heads=source.num_key_value_heads,
        vocabulary=source.vocab_size,
        feed_forward=source.intermediate_size,
        with_experts=expert_layers_of(source),
        experts=getattr(source, "num_experts", 0),
        channels=getattr(source, "moe_intermediate_size", 0),
    )
    if learner.fp8 != "none":
        _check_fp8(source, learner)
    return source


def architecture_of(source: "PreTrainedConfig") -> str:
    """The model's class; ``none`` if the configuration names none."""
    name: str = (source.architectures or ["none"])[0]
    return name


def head_size_of(source: "PreTrainedConfig") -> int:
    """Channels of an attention head."""
    channels: int = getattr(source, "head_dim", None) or source.hidden_size // source.num_attention_heads
    return channels


def _check_supported(source: "PreTrainedConfig", quantised: bool) -> None:
    quantization = None if quantised else getattr(source, "quantization_config", None)
    architecture = check_architecture(source.architectures, quantization)
    if source.model_type != MODEL_TYPES[architecture]:
        problem = (
            f"config.json has model_type {source.model_type!r}, and that of a {architecture} is {MODEL_TYPES[architecture]!r}"
        )
        raise RecipeError("model.path", problem, "correct the one that is wrong there")
    check_positive({name: getattr(source, name, None) for name in _SIZES})
    if architecture == WITH_EXPERTS:
        check_routing(source.num_experts, source.moe_intermediate_size, source.num_experts_per_tok)
    found = [variant for variant, asked in _variants(source, architecture).items() if asked]
    if found:
        raise RecipeError(
            "model.path",
            f"{architecture} with {', '.join(found)} is not supported",
            "choose a model with hidden_act silu, no biases (except Qwen2's own), full attention everywhere, rope_type default, "
            "linear or llama3 over whole heads, and, if it has experts, several of them per token or norm_topk_prob false",
        )


def _variants(source: "PreTrainedConfig", architecture: str) -> dict[str, bool]:
    """For each variant that engines compute and the learner does not, whether the configuration asks for it."""
    rope = source.rope_parameters.get("rope_type", "default")
    rotary = source.rope_parameters.get("partial_rotary_factor", 1.0)
    layers = set(getattr(source, "layer_types", None) or ()) - {"full_attention"}
    scale = getattr(source, "logit_scale", 1.0)
    own_biases = architecture in WITH_BIASES
    return {
        f"hidden_act {source.hidden_act}": source.hidden_act != "silu",
        "attention_bias": not own_biases and bool(source.attention_bias),
        "mlp_bias": bool(getattr(source, "mlp_bias", False)),
        **{key: not own_biases and bool(getattr(source, key, False)) for key in ("bias", "qkv_bias")},
        "qk_norm": architecture not in WITH_HEAD_NORMS and bool(getattr(source, "qk_norm", False)),
        "use_sliding_window": bool(getattr(source, "use_sliding_window", False)),
        f"layer_types {', '.join(sorted(layers))}": bool(layers),
        "text_config": source.get_text_config() is not source or hasattr(source, "text_config"),
        "dual_chunk_attention_config": getattr(source, "dual_chunk_attention_config", None) is not None,
        "is_causal false": not getattr(source, "is_causal", True),
        f"rope_type {rope}": rope not in ("default", *SCALED_ROPE),
        f"partial_rotary_factor {rotary}": rotary not in (None, 1.0),
        f"logit_scale {scale}": scale != 1.0,
        "shared_expert_intermediate_size": bool(getattr(source, "shared_expert_intermediate_size", 0)),
        # The weight of the one expert would be 1 whatever the router computes, so the router would not learn.
        "norm_topk_prob with a single expert per token": any(expert_layers_of(source))
        and source.norm_topk_prob
        and source.num_experts_per_tok == 1,
    }


def expert_layers_of(source: "PreTrainedConfig") -> list[bool]:
    """For each layer, whether it is a mixture of experts."""
    if architecture_of(source) != WITH_EXPERTS:
        return [False] * source.num_hidden_layers
    return expert_layers(source.num_hidden_layers, source.num_experts, source.decoder_sparse_step, source.mlp_only_layers)


def _check_fp8(source: "PreTrainedConfig", learner: LearnerConfig) -> None:
    if any(expert_layers_of(source)):
        raise RecipeError(
            "learner.fp8",
            "fp8 products of experts have not been tested",
            "set it to none, or choose a model without experts",
        )
    heads, groups = source.num_attention_heads, source.num_key_value_heads
    for what, channels in (
        ("hidden channels", source.hidden_size),
        ("channels of queries, keys and values", head_size_of(source) * (heads + 2 * groups) // learner.tensor_parallel),
        ("channels of attention", head_size_of(source) * heads // learner.tensor_parallel),
        ("feed-forward channels", source.intermediate_size // learner.tensor_parallel),
    ):
        if channels % FP8_MULTIPLE:
            raise RecipeError(
                "learner.fp8",
                f"a rank's {channels} {what} are not a multiple of {FP8_MULTIPLE}, which fp8 products need",
                "set it to none, or choose another learner.tensor_parallel or model",
            )
