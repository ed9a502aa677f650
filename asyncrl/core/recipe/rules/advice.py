"""Finds values of a recipe that are allowed but work against each other, and says what would mend it.

Each function yields one sentence: the keys and their values, what they do together, and the remedy. What is certain to
be wrong is refused instead (:mod:`asyncrl.core.recipe.rules.broken_rules`), and keys without effect are found by
:mod:`asyncrl.core.recipe.rules.inert`.
"""

from collections.abc import Callable, Iterator

from asyncrl.core.recipe.advantage import GaeAdvantageConfig, ReinforcePlusPlusAdvantageConfig, RemaxAdvantageConfig
from asyncrl.core.recipe.algorithm import TokenMeanConfig
from asyncrl.core.recipe.buffer import ZeroVarianceFilterConfig
from asyncrl.core.recipe.correction import CorrectionConfig
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.loss import GmpoLossConfig, GspoLossConfig, ReinforceLossConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.text import exact

_NARROW = 0.01
"""A clip range of a row's mean ratio below this is meant for policies that differ by few small optimizer steps."""
_LARGE_LR = 1e-5
"""The papers whose clip ranges are narrow train all weights at about 1e-6."""
_FAR = 4
"""The largest staleness that the loss's own ratio is known to correct well."""


def conflicts(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for each pair of values that work against each other."""
    for conflict in _CONFLICTS:
        yield from conflict(recipe)


def _a_critic_that_lags_behind(recipe: Recipe) -> Iterator[str]:
    advantage, rate = recipe.algorithm.advantage, recipe.learner.lr
    # The critic trains all its weights, so the higher rate of adapters says nothing about it.
    if isinstance(advantage, GaeAdvantageConfig) and recipe.learner.lora is None and advantage.critic_lr < rate:
        yield (
            f"algorithm.advantage.critic_lr {advantage.critic_lr:g} is below learner.lr {rate:g}: the critic learns more slowly "
            f"than the policy whose values it estimates; set algorithm.advantage.critic_lr={exact(rate)} or higher"
        )


def _a_narrow_range_around_a_distant_anchor(recipe: Recipe) -> Iterator[str]:
    loss, anchor = recipe.algorithm.loss, recipe.algorithm.correction.anchor
    if isinstance(loss, GspoLossConfig) and loss.clip_high < _NARROW and anchor == "behaviour":
        yield (
            f"algorithm.loss of kind gspo clips at 1 + {loss.clip_high:g}, but with algorithm.correction.anchor behaviour the "
            "staleness and the engines' arithmetic alone move the mean ratio of many rows by more, and clipped rows are not "
            "trained; set algorithm.correction.anchor=proximal_recomputed algorithm.correction.weight=token, or "
            "algorithm.loss.clip_low=0.1 algorithm.loss.clip_high=0.1"
        )


def _a_narrow_range_for_large_steps(recipe: Recipe) -> Iterator[str]:
    algorithm, rate = recipe.algorithm, recipe.learner.lr
    loss, steps = algorithm.loss, algorithm.optimizer_steps
    if isinstance(loss, GspoLossConfig) and loss.clip_high < _NARROW and steps > 1 and rate > _LARGE_LR:
        yield (
            f"algorithm.loss of kind gspo clips at 1 + {loss.clip_high:g}, which suits a learning rate of about 1e-6: with "
            f"learner.lr {rate:g} the first of the {steps} optimizer steps on a batch moves many rows out of that range, and the "
            "others train little; set algorithm.minibatches=1 algorithm.epochs=1, or raise algorithm.loss.clip_low and "
            "algorithm.loss.clip_high, and watch loss/clip_fraction"
        )


def _a_ratio_of_rows_weighed_by_length(recipe: Recipe) -> Iterator[str]:
    algorithm = recipe.algorithm
    if isinstance(algorithm.loss, GspoLossConfig | GmpoLossConfig) and isinstance(algorithm.aggregation, TokenMeanConfig):
        kind = type(algorithm.loss).__struct_config__.tag
        yield (
            f"algorithm.loss of kind {kind} has one ratio for each row, and algorithm.aggregation of kind token_mean weighs long "
            "rows more; set algorithm.aggregation.kind=sequence_mean_token_mean, as published"
        )


def _later_steps_without_ratio(recipe: Recipe) -> Iterator[str]:
    algorithm = recipe.algorithm
    steps = algorithm.optimizer_steps
    if isinstance(algorithm.loss, ReinforceLossConfig) and steps > 1:
        yield (
            "algorithm.loss of kind reinforce has neither ratio nor clip, so that of the "
            f"{steps} optimizer steps on a batch only the first is corrected for how the policy has moved; set "
            "algorithm.minibatches=1 algorithm.epochs=1, or algorithm.loss.kind=cispo"
        )


def _far_tokens_that_only_the_ratio_corrects(recipe: Recipe) -> Iterator[str]:
    correction, bound = recipe.algorithm.correction, recipe.buffer.max_staleness
    if bound > _FAR and correction == CorrectionConfig():
        yield (
            f"buffer.max_staleness {bound} lets in tokens that the policy would hardly sample any more, and "
            "algorithm.correction leaves none of them out; launch with +correction=far, or set "
            f"buffer.max_staleness={_FAR}"
        )


def _groups_without_spread_that_would_teach(recipe: Recipe) -> Iterator[str]:
    advantage = recipe.algorithm.advantage
    filters = any(isinstance(one, ZeroVarianceFilterConfig) for one in recipe.buffer.filters)
    if filters and recipe.algorithm.teacher is not None:
        yield (
            "buffer.filters of kind zero_variance leaves out groups of equal rewards, which algorithm.teacher would train; take "
            "the filter out, or the policy learns from the teacher only where its rewards differ"
        )
    if filters and isinstance(advantage, GaeAdvantageConfig | RemaxAdvantageConfig | ReinforcePlusPlusAdvantageConfig):
        kind = type(advantage).__struct_config__.tag
        yield (
            f"buffer.filters of kind zero_variance leaves out groups of equal rewards, which algorithm.advantage of kind {kind} "
            "would train; take the filter out, or the policy never learns from what always fails or "
            "always succeeds"
        )


def _adapters_with_the_rate_of_full_training(recipe: Recipe) -> Iterator[str]:
    learner = recipe.learner
    if learner.lora is not None and learner.lr <= LearnerConfig().lr:
        yield (
            f"learner.lr {learner.lr:g} is a rate for training all weights, and learner.lora needs about ten times that; set "
            f"learner.lr={10 * learner.lr:g}"
        )


_CONFLICTS: tuple[Callable[[Recipe], Iterator[str]], ...] = (
    _a_critic_that_lags_behind,
    _a_narrow_range_around_a_distant_anchor,
    _a_narrow_range_for_large_steps,
    _a_ratio_of_rows_weighed_by_length,
    _later_steps_without_ratio,
    _far_tokens_that_only_the_ratio_corrects,
    _groups_without_spread_that_would_teach,
    _adapters_with_the_rate_of_full_training,
)
