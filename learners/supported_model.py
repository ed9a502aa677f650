"""What the learner takes of a Hugging Face folder's configuration, as transformers reads it. Needs no torch.

The dry run and each rank both use it, so that neither refuses what the other takes.
"""

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.core.architectures.description import GATE_LIMIT, GATE_SLOPE, Description
from asyncrl.core.architectures.known import KNOWN
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.rules.model import check_architecture, check_layout, check_positive, check_routing
from asyncrl.learners.batches.packing import FP8_MULTIPLE
from asyncrl.learners.megatron.versions import VERSIONS

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
SCALED_ROPE = ("linear", "llama3", "yarn")
"""The scaled rotary position embeddings that the learner computes."""


def check_megatron() -> None:
    """Check that the installed version of megatron-core is one that has been tested; a ``RecipeError`` says which are."""
    try:
        version = importlib.metadata.version("megatron-core")
    except importlib.metadata.PackageNotFoundError:
        version = "no version"
    if version not in VERSIONS:
        known = " and ".join(VERSIONS)
        wanted = " or ".join(f"megatron-core=={each} with {python}" for each, python in VERSIONS.items())
        problem = f"megatron-core {version} is installed, but the learner is tested with {known} only"
        raise RecipeError("learner", problem, f"install {wanted}")


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
    check_layout(learner, description_of(source).architecture(source))
    if learner.fp8 != "none":
        _check_fp8(source, learner)
    return source


def description_of(source: "PreTrainedConfig") -> Description:
    """What is known of the architecture of a model that can be trained."""
    return KNOWN[source.architectures[0]]


def _check_supported(source: "PreTrainedConfig", quantised: bool) -> None:
    quantization = None if quantised else getattr(source, "quantization_config", None)
    description = check_architecture(source.architectures, quantization)
    if source.model_type != description.model_type:
        problem = (
            f"config.json has model_type {source.model_type!r}, and that of a {description.name} is {description.model_type!r}"
        )
        raise RecipeError("model.path", problem, "correct the one that is wrong there")
    check_positive({name: getattr(source, name, None) for name in _SIZES})
    check_routing(description, description.mixture(source))
    found = [variant for variant, asked in _variants(source, description).items() if asked]
    if found:
        raise RecipeError(
            "model.path",
            f"{description.name} with {', '.join(found)} is not supported",
            "choose a model with hidden_act silu, no biases (except Qwen2's own), full attention everywhere, rope_type default, "
            f"{' or '.join(SCALED_ROPE)} over whole heads, and, if it has experts, several of them per token or norm_topk_prob "
            "false; of gpt-oss, one with the numbers and layers of those published",
        )


def _variants(source: "PreTrainedConfig", description: Description) -> dict[str, bool]:
    """For each variant that engines compute and the learner does not, whether the configuration asks for it."""
    rope = source.rope_parameters.get("rope_type", "default")
    rotary = source.rope_parameters.get("partial_rotary_factor", 1.0)
    layers = set() if description.sinks else set(getattr(source, "layer_types", None) or ()) - {"full_attention"}
    scale, groups = getattr(source, "logit_scale", 1.0), getattr(source, "n_group", 1)
    mixture, architecture = description.mixture(source), description.architecture(source)
    windows = bool(getattr(source, "use_sliding_window", False))
    window = 0 if windows or description.sinks else getattr(source, "sliding_window", None) or 0
    return {
        f"hidden_act {source.hidden_act}": source.hidden_act != "silu",
        "attention_bias": not architecture.biases and bool(getattr(source, "attention_bias", False)),
        "mlp_bias": bool(getattr(source, "mlp_bias", False)),
        **{key: not description.biases and bool(getattr(source, key, False)) for key in ("bias", "qkv_bias")},
        "qkv_bias false": description.biases and not getattr(source, "qkv_bias", True),
        "qk_norm": not description.head_norms and bool(getattr(source, "qk_norm", False)),
        "use_sliding_window": windows,
        f"sliding_window {window} of {source.max_position_embeddings} positions": 0 < window < source.max_position_embeddings,
        f"layer_types {', '.join(sorted(layers))}": bool(layers),
        "text_config": source.get_text_config() is not source or hasattr(source, "text_config"),
        "dual_chunk_attention_config": getattr(source, "dual_chunk_attention_config", None) is not None,
        "is_causal false": not getattr(source, "is_causal", True),
        f"rope_type {rope}": rope not in ("default", *SCALED_ROPE),
        f"partial_rotary_factor {rotary}": rotary not in (None, 1.0) and (not description.partial_rotation or rope != "default"),
        f"logit_scale {scale}": scale != 1.0,
        "shared_expert_intermediate_size": not mixture.shared and bool(getattr(source, "shared_expert_intermediate_size", 0)),
        f"n_group {groups}": mixture.sigmoid and groups not in (None, mixture.groups),
        **_latent_variants(source, description),
        **_sink_variants(source, description),
        "norm_topk_prob false": mixture.sigmoid and not mixture.normalised,
        # The weight of the one expert would be 1 whatever the router computes, so the router would not learn.
        "norm_topk_prob with a single expert per token": any(mixture.layers) and mixture.normalised and mixture.per_token == 1,
    }


def _latent_variants(source: "PreTrainedConfig", description: Description) -> dict[str, bool]:
    """As :func:`_variants`, of multi-head latent attention."""
    if not description.latent:
        return {}
    heads, keys = source.num_attention_heads, source.num_key_value_heads
    method, scores = getattr(source, "topk_method", "noaux_tc"), getattr(source, "scoring_func", "sigmoid")
    return {
        f"topk_method {method}": method != "noaux_tc",
        f"scoring_func {scores}": scores != "sigmoid",
        f"num_key_value_heads {keys} of {heads}": keys != heads,
        "rope_interleave false": not getattr(source, "rope_interleave", True),
    }


def _sink_variants(source: "PreTrainedConfig", description: Description) -> dict[str, bool]:
    """As :func:`_variants`, of attention with sinks. vLLM reads none of this: it has one number for each."""
    if not description.sinks:
        return {}
    rope, layers = source.rope_parameters, source.num_hidden_layers
    alternating = (["sliding_attention", "full_attention"] * layers)[:layers]
    return {
        "layer_types that do not alternate, beginning with sliding_attention": source.layer_types != alternating,
        f"sliding_window {source.sliding_window}": (source.sliding_window or 0) < 1,
        "attention_bias false": not source.attention_bias,
        f"rms_norm_eps {source.rms_norm_eps}": source.rms_norm_eps != 1e-5,
        f"swiglu_limit {source.swiglu_limit}": source.swiglu_limit != GATE_LIMIT,
        f"swiglu_alpha {source.swiglu_alpha}": source.swiglu_alpha != GATE_SLOPE,
        f"rope_type {rope.get('rope_type')} beside sinks": rope.get("rope_type") != "yarn",
        **{f"{key} {rope.get(key)}": rope.get(key) is not None for key in ("attention_factor", "mscale", "mscale_all_dim")},
    }


def _check_fp8(source: "PreTrainedConfig", learner: LearnerConfig) -> None:
    architecture = description_of(source).architecture(source)
    if any(architecture.with_experts):
        raise RecipeError(
            "learner.fp8",
            "fp8 products of experts have not been tested",
            "set it to none, or choose a model without experts",
        )
    heads, groups = architecture.heads, architecture.key_value_heads
    for what, channels in (
        ("hidden channels", source.hidden_size),
        ("channels of queries, keys and values", architecture.head_size * (heads + 2 * groups) // learner.tensor_parallel),
        ("channels of attention", architecture.head_size * heads // learner.tensor_parallel),
        ("feed-forward channels", source.intermediate_size // learner.tensor_parallel),
    ):
        if channels % FP8_MULTIPLE:
            raise RecipeError(
                "learner.fp8",
                f"a rank's {channels} {what} are not a multiple of {FP8_MULTIPLE}, which fp8 products need",
                "set it to none, or choose another learner.tensor_parallel or model",
            )
