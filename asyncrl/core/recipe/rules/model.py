"""Checks from a Hugging Face folder's ``config.json`` that a model can be trained. The launch and each rank both use them."""

from collections.abc import Mapping, Sequence
from math import gcd

from asyncrl.core.architectures.architecture import FEED_FORWARD, Architecture
from asyncrl.core.architectures.description import Description, Mixture
from asyncrl.core.architectures.known import KNOWN
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.learner import LearnerConfig, LoraConfig
from asyncrl.core.recipe.rules.experts import check_experts


def check_architecture(architectures: Sequence[str] | None, quantization: object) -> Description:
    """Return what is known of the first of a config's ``architectures``. It can be trained, and is not quantised.

    Args:
        quantization: the config's ``quantization_config``, ``None`` if it has none.

    Raises:
        RecipeError: the architecture is not supported, or the weights are quantised.
    """
    architecture = (architectures or ["none"])[0]
    if architecture not in KNOWN:
        raise RecipeError("model.path", f"architecture {architecture} is not supported", f"supported are {', '.join(KNOWN)}")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        raise RecipeError(
            "model.path",
            f"config.json has a quantization_config ({method}), and quantised weights are not supported",
            "name the folder of the model's unquantised weights",
        )
    return KNOWN[architecture]


def check_positive(sizes: Mapping[str, int | None]) -> None:
    """Check that each of a config's sizes, given by name, is at least 1 or None; a ``RecipeError`` names one that is not."""
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise RecipeError("model.path", f"config.json has {name} {size}", "name the folder of a model with at least 1")


def check_routing(description: Description, mixture: Mixture) -> None:
    """Check the sizes of a model that is a mixture of experts.

    Raises:
        RecipeError: there are no experts, or a token cannot be routed to so many.
    """
    keys, experts = description.experts, mixture.experts
    if keys is None:
        return
    for name, count in (
        (keys.count[0], experts),
        (keys.channels, mixture.channels),
        *([(keys.shared, mixture.shared)] if keys.shared else []),
    ):
        if count < 1:
            problem = f"config.json of a {description.name} has {name} {count}" if count else f"config.json has no {name}, or 0"
            raise RecipeError("model.path", problem, f"name a folder with the model's true {name}, at least 1")
    if not 1 <= mixture.per_token <= experts:
        raise RecipeError(
            "model.path",
            f"config.json has num_experts_per_tok {mixture.per_token}, and a layer has {experts} experts",
            f"name a folder with the model's true num_experts_per_tok, from 1 to {experts}",
        )


def check_layout(learner: LearnerConfig, model: Architecture) -> None:
    """Check that the ranks can divide a model; a ``RecipeError`` says what they cannot."""
    layers = model.layers
    counts = {
        "attention heads": model.heads,
        "key-value heads": model.key_value_heads,
        "vocabulary entries": model.vocabulary,
    }
    if not all(model.with_experts):
        counts["feed-forward channels"] = model.intermediate_size
    if model.shared_size:
        counts["channels of the shared expert"] = model.shared_size
    all_of_them = gcd(*counts.values())
    for key, ranks, what, count, divided in (
        *(("tensor_parallel", learner.tensor_parallel, what, count, all_of_them) for what, count in counts.items()),
        ("pipeline_parallel", learner.pipeline_parallel, "layers", layers, layers),
    ):
        if count % ranks:
            raise RecipeError(
                f"learner.{key}", f"{ranks} does not divide the model's {count} {what}", f"choose a divisor of {divided}"
            )
    if model.expert_names.joint and learner.expert_tensor_parallel > 1:
        problem = f"{learner.expert_tensor_parallel} ranks cannot divide experts that have biases"
        raise RecipeError(
            "learner.expert_tensor_parallel", problem, "set it to 1, and share out experts by learner.expert_parallel"
        )
    if learner.lora is not None:
        _check_adapters(learner.lora, model)
    of_stage = layers // learner.pipeline_parallel
    if of_stage % learner.virtual_pipeline:
        raise RecipeError(
            "learner.virtual_pipeline",
            f"{learner.virtual_pipeline} does not divide the {of_stage} layers of a pipeline stage",
            f"choose a divisor of {of_stage}",
        )
    with_bias = bool(model.expert_names.choice_bias)
    check_experts(learner, model.with_experts, model.experts, model.expert_size, with_bias=with_bias)


def _check_adapters(lora: LoraConfig, model: Architecture) -> None:
    """Check that the model can have the adapters, and engines apply them if they are published alone."""
    with_experts, latent = any(model.with_experts), model.latent is not None
    there = (*model.attention_projections, *(() if with_experts else FEED_FORWARD))
    refused = [target for target in lora.targets if target not in there]
    if refused:
        kind, only = ("a model with experts", " of attention only") if with_experts else ("this model", "")
        raise RecipeError(
            "learner.lora.targets",
            f"{kind} cannot have adapters for {', '.join(refused)}",
            f"name projections{only}: {', '.join(there)}",
        )
    if lora.publish == "adapter" and with_experts:
        raise RecipeError(
            "learner.lora.publish",
            "engines that apply adapters compute experts with kernels that vLLM has not got on every device",
            "set it to merged for a model with experts",
        )
    if lora.publish == "adapter" and latent:
        raise RecipeError(
            "learner.lora.publish",
            "engines keep products of the weights of latent attention, to which vLLM adds no adapters",
            "set it to merged for a model with latent attention",
        )
