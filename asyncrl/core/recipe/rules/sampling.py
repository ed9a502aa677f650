"""Rules on how tokens are sampled: turns fit the context, and log-probabilities are of the distributions the update computes."""

from collections.abc import Callable, Iterator

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import LEAST_TEMPERATURE, Recipe


def _a_turn_fits_the_context(recipe: Recipe) -> Iterator[RecipeError]:
    context = recipe.model.max_context
    turns = (
        ("sampling.max_turn_tokens", recipe.sampling.max_turn_tokens),
        ("evaluation.max_turn_tokens", recipe.evaluation.max_turn_tokens),
    )
    for place, turn in turns:
        if turn is not None and turn >= context:
            yield RecipeError(
                place,
                f"{turn} leaves no room for the prompt in model.max_context {context}",
                f"set it below {context}, or model.max_context above {turn}",
            )


def _ratios_are_of_the_whole_distribution(recipe: Recipe) -> Iterator[RecipeError]:
    """With truncated sampling, behaviour log-probabilities are renormalised over the tokens that were kept, and the update's own
    are of the whole distribution: each ratio would be too small by the probability of the kept tokens, a factor below 1 that
    multiplies up over a row."""
    sampling = recipe.sampling
    if not sampling.sampling.truncated or not recipe.algorithm.uses_behaviour:
        return
    off = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
    name = next(name for name, value in off.items() if getattr(sampling, name) != value)
    yield RecipeError(
        f"sampling.{name}",
        f"with {getattr(sampling, name):g}, behaviour probabilities are renormalised over the tokens that were kept, and the "
        "update compares them with probabilities under the whole distribution, so that all its ratios would be too small",
        f"set it to {off[name]:g} (evaluation.{name} is free to differ), or train without behaviour probabilities: "
        "algorithm.correction.anchor=proximal_recomputed with weight none and no reject, and buffer.max_staleness=0",
    )


def _evaluation_is_greedy_or_sampled_as_asked(recipe: Recipe) -> Iterator[RecipeError]:
    """vLLM takes a temperature between 0 and the least that it samples at for the latter."""
    temperature = recipe.evaluation.temperature
    if 0 < temperature < LEAST_TEMPERATURE:
        problem = f"{temperature:g} is lower than vLLM samples at"
        yield RecipeError("evaluation.temperature", problem, f"set it to 0 (greedy), or to at least {LEAST_TEMPERATURE:g}")


SAMPLING_RULES: tuple[Callable[[Recipe], Iterator[RecipeError]], ...] = (
    _a_turn_fits_the_context,
    _ratios_are_of_the_whole_distribution,
    _evaluation_is_greedy_or_sampled_as_asked,
)
