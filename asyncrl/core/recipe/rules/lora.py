"""Rules of low-rank adapters that are published by themselves."""

from collections.abc import Callable, Iterator

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe

LARGEST_RANK = 512
"""The largest rank that vLLM applies."""


def _an_episode_keeps_an_adapter(recipe: Recipe) -> Iterator[RecipeError]:
    lora = recipe.learner.lora
    if recipe.generators.updates == "at_episode" and (lora is None or lora.publish != "adapter"):
        remedy = "train adapters and publish them" if lora is None else "publish adapters"
        yield RecipeError(
            "generators.updates",
            "at_episode needs several versions in an engine at once, and whole weights fit only once",
            f"set it to in_flight, or {remedy} alone (learner.lora.publish=adapter)",
        )


def _an_engine_applies_the_rank(recipe: Recipe) -> Iterator[RecipeError]:
    lora = recipe.learner.lora
    if lora is not None and lora.publish == "adapter" and lora.rank > LARGEST_RANK:
        yield RecipeError(
            "learner.lora.rank",
            f"{lora.rank} is more than vLLM applies, and learner.lora.publish is adapter",
            f"set it to at most {LARGEST_RANK}, or learner.lora.publish to merged",
        )


LORA_RULES: tuple[Callable[[Recipe], Iterator[RecipeError]], ...] = (
    _an_episode_keeps_an_adapter,
    _an_engine_applies_the_rank,
)
