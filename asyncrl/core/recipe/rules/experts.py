"""Checks that the learner's ranks can share out and divide a model's experts as the recipe asks."""

from collections.abc import Sequence

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.learner import LearnerConfig

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def check_experts(learner: LearnerConfig, with_experts: Sequence[bool], experts: int, channels: int) -> None:
    """Check that the learner's layout can divide a model's experts. Its pipeline must already divide the model's layers.

    Args:
        with_experts: which layers are mixtures of experts.
        experts: experts of a layer.
        channels: channels of an expert.

    Raises:
        RecipeError: the layout cannot divide the experts, or the recipe asks for adapters on layers with experts or publishes
            adapters alone.
    """
    if not any(with_experts):
        if learner.expert_parallel * learner.expert_tensor_parallel > 1:
            raise RecipeError(
                "learner.expert_parallel",
                f"{learner.expert_parallel} x learner.expert_tensor_parallel {learner.expert_tensor_parallel} ranks are to share "
                "out experts, and the model has none",
                "set both to 1",
            )
        return
    refused = [] if learner.lora is None else [target for target in learner.lora.targets if target not in _ATTENTION]
    if refused:
        raise RecipeError(
            "learner.lora.targets",
            f"a model with experts cannot have adapters for {', '.join(refused)}",
            f"name projections of attention only: {', '.join(_ATTENTION)}",
        )
    if learner.lora is not None and learner.lora.publish == "adapter":
        raise RecipeError(
            "learner.lora.publish",
            "engines that apply adapters compute experts with kernels that vLLM has not got on every device",
            "set it to merged for a model with experts",
        )
    for key, ranks, count, what in (
        ("expert_parallel", learner.expert_parallel, experts, "experts"),
        ("expert_tensor_parallel", learner.expert_tensor_parallel, channels, "channels of an expert"),
    ):
        if count % ranks:
            raise RecipeError(
                f"learner.{key}", f"{ranks} does not divide the model's {count} {what}", f"choose a divisor of {count}"
            )
    stages = learner.pipeline_parallel
    size = len(with_experts) // (stages * learner.virtual_pipeline)
    chunks = [any(with_experts[first : first + size]) for first in range(0, len(with_experts), size)]
    # Megatron can neither save nor load the experts' optimizer if some ranks have no experts.
    for stage in range(stages):
        if not any(chunks[stage::stages]):
            raise RecipeError(
                "learner.pipeline_parallel",
                f"stage {stage} of {stages} has none of the model's {sum(with_experts)} layers with experts",
                "choose fewer stages, so that each has one",
            )
