"""Checks that the learner's ranks can share out and divide a model's experts, and its routers do, as the recipe asks."""

from collections.abc import Callable, Iterator, Sequence

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.generators import PIPELINE
from asyncrl.core.recipe.learner import ExpertsConfig, LearnerConfig
from asyncrl.core.recipe.rules.placement import pool_place
from asyncrl.core.recipe.schema import Recipe


def check_experts(learner: LearnerConfig, with_experts: Sequence[bool], experts: int, channels: int, *, with_bias: bool) -> None:
    """Check that the learner's layout can divide a model's experts. Its pipeline must already divide the model's layers.

    Args:
        with_experts: which layers are mixtures of experts.
        experts: experts of a layer.
        channels: channels of an expert.
        with_bias: whether routers have a bias by which they choose experts.

    Raises:
        RecipeError: the layout cannot divide the experts, or the recipe asks something of routers that they cannot do.
    """
    _check_routers(learner, any(with_experts), with_bias)
    if not any(with_experts):
        if learner.expert_parallel * learner.expert_tensor_parallel > 1:
            raise RecipeError(
                "learner.expert_parallel",
                f"{learner.expert_parallel} x learner.expert_tensor_parallel {learner.expert_tensor_parallel} ranks are to share "
                "out experts, and the model has none",
                "set both to 1",
            )
        return
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


def _check_routers(learner: LearnerConfig, has_experts: bool, with_bias: bool) -> None:
    asked = learner.experts
    if not has_experts:
        for key, value in (("replay", asked.replay), ("balance", asked.balance != "none")):
            if value:
                problem = "it is asked of routers, and the model has no experts"
                raise RecipeError(f"learner.experts.{key}", problem, "leave it out, or choose a model with experts")
    if asked.balance == "bias" and not with_bias:
        raise RecipeError(
            "learner.experts.balance",
            "bias changes the bias by which routers choose experts, and those of this model have none",
            "set it to aux or none",
        )
    if asked.balance != "none" and learner.lora is not None:
        raise RecipeError(
            "learner.experts.balance",
            f"{asked.balance} trains routers, and with learner.lora they stay as they are",
            "set it to none, or learner.lora to null",
        )


def _engines_say_which_experts(recipe: Recipe) -> Iterator[RecipeError]:
    """vLLM says which experts it chose only where one of its processes knows them of all layers, and cached prefixes too."""
    for name, pool in recipe.generators.training.items() if recipe.learner.experts.replay else ():
        wrong = {
            PIPELINE: pool.engine.get(PIPELINE, 1) != 1,
            "decode_context_parallel_size": pool.engine.get("decode_context_parallel_size", 1) != 1,
            "enable_prefix_caching": pool.engine.get("enable_prefix_caching", True) is not True,
            "speculative_config": bool(pool.engine.get("speculative_config")),
        }
        for key in (key for key, is_wrong in wrong.items() if is_wrong):
            yield RecipeError(
                f"{pool_place(name)}.engine.{key}",
                f"with {pool.engine[key]!r} vLLM does not say which experts it chose, and learner.experts.replay needs it",
                "leave it out, or set learner.experts.replay to false",
            )


def _balances_as_it_is_told(recipe: Recipe) -> Iterator[RecipeError]:
    asked, usual = recipe.learner.experts, ExpertsConfig()
    for key, balance in (("aux_coefficient", "aux"), ("bias_rate", "bias")):
        if asked.balance != balance and getattr(asked, key) != getattr(usual, key):
            yield RecipeError(
                f"learner.experts.{key}",
                f"it has no effect: learner.experts.balance is {asked.balance}",
                f"leave it out, or set learner.experts.balance to {balance}",
            )


EXPERT_RULES: tuple[Callable[[Recipe], Iterator[RecipeError]], ...] = (_engines_say_which_experts, _balances_as_it_is_told)
