"""Checks from a Hugging Face folder's ``config.json`` that a model can be trained. The launch and each rank both use them."""

from collections.abc import Mapping, Sequence

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.rules.experts import check_experts

MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
"""The ``model_type`` of each architecture that can be trained."""
ARCHITECTURES = tuple(MODEL_TYPES)
WITH_EXPERTS = "Qwen3MoeForCausalLM"
"""The one architecture that has experts."""


def check_architecture(architectures: Sequence[str] | None, quantization: object) -> str:
    """Return the first of a config's ``architectures``, after checking that it can be trained and is not quantised.

    Args:
        quantization: the config's ``quantization_config``, ``None`` if it has none.

    Raises:
        RecipeError: the architecture is not supported, or the weights are quantised.
    """
    architecture = (architectures or ["none"])[0]
    if architecture not in ARCHITECTURES:
        raise RecipeError(
            "model.path", f"architecture {architecture} is not supported", f"supported are {', '.join(ARCHITECTURES)}"
        )
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        raise RecipeError(
            "model.path",
            f"config.json has a quantization_config ({method}), and quantised weights are not supported",
            "name the folder of the model's unquantised weights",
        )
    return architecture


def check_positive(sizes: Mapping[str, int | None]) -> None:
    """Check that each of a config's sizes, given by name, is at least 1 or None; a ``RecipeError`` names one that is not."""
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise RecipeError("model.path", f"config.json has {name} {size}", "name the folder of a model with at least 1")


def check_routing(experts: int, channels: int, chosen: int) -> None:
    """Check the sizes of a model that is a mixture of experts.

    Args:
        experts: experts of a layer; 0 if the config does not say.
        channels: channels of an expert; 0 if the config does not say.
        chosen: experts that a token is routed to.

    Raises:
        RecipeError: there are no experts, or a token cannot be routed to so many.
    """
    for name, count in (("num_experts", experts), ("moe_intermediate_size", channels)):
        if count < 1:
            problem = f"config.json of a {WITH_EXPERTS} has {name} {count}" if count else f"config.json has no {name}, or 0"
            raise RecipeError("model.path", problem, f"name a folder with the model's true {name}, at least 1")
    if not 1 <= chosen <= experts:
        raise RecipeError(
            "model.path",
            f"config.json has num_experts_per_tok {chosen}, and a layer has {experts} experts",
            f"name a folder with the model's true num_experts_per_tok, from 1 to {experts}",
        )


def check_layout(
    learner: LearnerConfig,
    *,
    heads: int,
    key_value_heads: int,
    vocabulary: int,
    feed_forward: int,
    with_experts: Sequence[bool],
    experts: int,
    channels: int,
) -> None:
    """Check that the ranks can divide a model.

    Args:
        feed_forward: channels of a layer without experts.
        with_experts: which layers are mixtures of experts.
        experts: experts of such a layer.
        channels: channels of an expert.

    Raises:
        RecipeError: the ranks cannot divide it.
    """
    layers = len(with_experts)
    counts = {"attention heads": heads, "key-value heads": key_value_heads, "vocabulary entries": vocabulary}
    if not all(with_experts):
        counts["feed-forward channels"] = feed_forward
    for key, ranks, what, count in (
        *(("tensor_parallel", learner.tensor_parallel, f"the model's {count} {what}", count) for what, count in counts.items()),
        ("pipeline_parallel", learner.pipeline_parallel, f"the model's {layers} layers", layers),
    ):
        if count % ranks:
            raise RecipeError(f"learner.{key}", f"{ranks} does not divide {what}", f"choose a divisor of {count}")
    of_stage = layers // learner.pipeline_parallel
    if of_stage % learner.virtual_pipeline:
        raise RecipeError(
            "learner.virtual_pipeline",
            f"{learner.virtual_pipeline} does not divide the {of_stage} layers of a pipeline stage",
            f"choose a divisor of {of_stage}",
        )
    check_experts(learner, with_experts, experts, channels)
