"""Rules of the algorithm section: combinations that would silently train something other than the user means."""

from collections.abc import Callable, Iterator

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.advantage import (
    BestOfGroupAdvantageConfig,
    GaeAdvantageConfig,
    GdpoAdvantageConfig,
    MaxRlAdvantageConfig,
    NoAdvantageConfig,
    OpoAdvantageConfig,
    PassAtKAdvantageConfig,
    ReinforcePlusPlusAdvantageConfig,
    RemaxAdvantageConfig,
)
from asyncrl.core.recipe.algorithm import EpisodeCreditConfig, KlInLossConfig, KlInRewardConfig, TurnCreditConfig
from asyncrl.core.recipe.correction import CorrectionConfig, MaskBoundConfig, NormalizedBoundConfig, RejectRatioConfig
from asyncrl.core.recipe.custom import CustomAdvantageConfig, CustomLossConfig
from asyncrl.core.recipe.loss import (
    ClipCovLossConfig,
    GmpoLossConfig,
    PpoClipLossConfig,
)
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.text import exact

MIN_WEIGHT, MAX_WEIGHT = 1e-6, 1e6
"""Bounds on the absolute value of a gdpo weight: beyond these, squares overflow and standard deviations vanish."""

_OF_NO_GROUP = (NoAdvantageConfig, GaeAdvantageConfig, ReinforcePlusPlusAdvantageConfig, CustomAdvantageConfig)
"""Advantages that compare no episodes of a group, or of which only their author knows it."""

TAKE_NO_PENALTY = (PassAtKAdvantageConfig, MaxRlAdvantageConfig, GdpoAdvantageConfig, NoAdvantageConfig)
"""Advantages with which ``algorithm.overlong`` is refused: the final reward is a success or not, or not all that counts."""


def _stale_tokens_need_a_correction(recipe: Recipe) -> Iterator[RecipeError]:
    stale, correction = recipe.buffer.max_staleness, recipe.algorithm.correction
    if stale > 0 and not recipe.algorithm.loss.imitates and correction.weight == "none" and correction.anchor != "behaviour":
        by_ratio = "algorithm.correction.anchor to behaviour, " if recipe.algorithm.loss.has_ratio else ""
        yield RecipeError(
            "algorithm.correction.weight",
            f"none with buffer.max_staleness {stale} would train stale tokens as if they were fresh",
            f"set it to token, {by_ratio}or buffer.max_staleness to 0",
        )


def _the_behaviour_anchor_is_the_correction(recipe: Recipe) -> Iterator[RecipeError]:
    correction = recipe.algorithm.correction
    if correction.anchor == "behaviour" and isinstance(correction.weight, str) and correction.weight != "none":
        yield RecipeError(
            "algorithm.correction.weight",
            f"{correction.weight} weighs anchor over behaviour probability, which with anchor behaviour is always 1",
            "set it to none, or algorithm.correction.anchor to proximal_recomputed",
        )


def _a_bound_bounds_a_weight(recipe: Recipe) -> Iterator[RecipeError]:
    correction = recipe.algorithm.correction
    if correction.weight == "none" and correction.bound != CorrectionConfig().bound:
        anchor = " and algorithm.correction.anchor to proximal_recomputed" if correction.anchor == "behaviour" else ""
        yield RecipeError(
            "algorithm.correction.bound",
            "there is no weight to bound with algorithm.correction.weight none",
            "take it out (algorithm.correction.reject leaves tokens out without a weight), or set "
            f"algorithm.correction.weight to token{anchor}",
        )


def _a_mean_of_weights_does_not_move(recipe: Recipe) -> Iterator[RecipeError]:
    correction = recipe.algorithm.correction
    if isinstance(correction.bound, NormalizedBoundConfig) and correction.anchor == "proximal_log_linear":
        yield RecipeError(
            "algorithm.correction.bound.kind",
            "normalize divides by a mean taken before the first step, but each step moves the weights of anchor "
            "proximal_log_linear",
            "set it to truncate, or algorithm.correction.anchor to proximal_recomputed",
        )


def _an_anchor_needs_a_ratio(recipe: Recipe) -> Iterator[RecipeError]:
    anchor, loss = recipe.algorithm.correction.anchor, recipe.algorithm.loss
    if not loss.has_ratio and anchor != "proximal_recomputed":
        kind, weight = type(loss).__struct_config__.tag, "none" if loss.imitates else "token"
        yield RecipeError(
            "algorithm.correction.anchor",
            f"{anchor} anchors a ratio, and algorithm.loss of kind {kind} has none, so it would correct for nothing",
            f"set it to proximal_recomputed and algorithm.correction.weight to {weight}, or algorithm.loss.kind to cispo",
        )


def _who_imitates_corrects_nothing(recipe: Recipe) -> Iterator[RecipeError]:
    correction = recipe.algorithm.correction
    if recipe.algorithm.loss.imitates and (correction.weight != "none" or correction.reject):
        yield RecipeError(
            "algorithm.correction",
            "cross_entropy imitates what it is given, whoever sampled it, so there is nothing to weigh or to reject",
            "set algorithm.correction={anchor: proximal_recomputed, weight: none}",
        )


def _a_decaying_trust_region_is_a_clip_range(recipe: Recipe) -> Iterator[RecipeError]:
    loss = recipe.algorithm.loss
    if recipe.algorithm.correction.trust_region_decay < 1 and not loss.has_clip_range:
        kind = type(loss).__struct_config__.tag
        own = ", and have your function narrow its own range by tokens.staleness" if isinstance(loss, CustomLossConfig) else ""
        yield RecipeError(
            "algorithm.correction.trust_region_decay",
            f"algorithm.loss of kind {kind} has no clip range to narrow",
            f"set it to 1{own}, or algorithm.loss.kind to ppo_clip",
        )


def _one_advantage_for_a_loss_of_whole_rows(recipe: Recipe) -> Iterator[RecipeError]:
    if isinstance(recipe.algorithm.loss, GmpoLossConfig) and not isinstance(recipe.algorithm.credit, EpisodeCreditConfig):
        yield RecipeError(
            "algorithm.credit.kind",
            "turn gives the tokens of a row several advantages, and algorithm.loss of kind gmpo needs one for the whole row",
            "set it to episode, or algorithm.loss.kind to gspo",
        )


def _an_overlong_penalty_can_be_earned(recipe: Recipe) -> Iterator[RecipeError]:
    overlong, longest = recipe.algorithm.overlong, recipe.model.max_context
    if overlong is None:
        return
    if overlong.ramp > overlong.limit:
        yield RecipeError(
            "algorithm.overlong.ramp",
            f"a ramp of {overlong.ramp} tokens before limit {overlong.limit} would begin below 0 tokens",
            f"set it to at most {overlong.limit}",
        )
    if overlong.limit - overlong.ramp >= longest:
        yield RecipeError(
            "algorithm.overlong.limit",
            f"no episode is longer than model.max_context {longest}, so none would come within {overlong.ramp} tokens of "
            f"{overlong.limit}",
            f"set it to at most {longest}",
        )


def _a_success_stays_one(recipe: Recipe) -> Iterator[RecipeError]:
    algorithm = recipe.algorithm
    if not isinstance(algorithm.advantage, PassAtKAdvantageConfig | MaxRlAdvantageConfig):
        return
    kind = type(algorithm.advantage).__struct_config__.tag
    problem = f"algorithm.advantage of kind {kind} counts successes, and a success that loses any reward would count as a failure"
    if algorithm.overlong is not None:
        yield RecipeError("algorithm.overlong", problem, "take it out, or set algorithm.advantage.kind to grpo")
    if isinstance(algorithm.kl, KlInRewardConfig):
        yield RecipeError("algorithm.kl.kind", problem, "set it to in_loss, or algorithm.advantage.kind to grpo")


def _a_critic_values_every_token(recipe: Recipe) -> Iterator[RecipeError]:
    algorithm = recipe.algorithm
    if not isinstance(algorithm.advantage, GaeAdvantageConfig):
        return
    if isinstance(algorithm.loss, GmpoLossConfig):
        yield RecipeError(
            "algorithm.advantage.kind",
            "gae gives the tokens of a row several advantages, and algorithm.loss of kind gmpo needs one for the whole row",
            "set it to grpo, or algorithm.loss.kind to ppo_clip",
        )
    if isinstance(algorithm.credit, TurnCreditConfig) and algorithm.credit.discount < 1:
        yield RecipeError(
            "algorithm.credit.discount",
            f"{exact(algorithm.credit.discount)} discounts turns, and algorithm.advantage of kind gae discounts tokens",
            "set it to 1, and algorithm.advantage.discount instead",
        )
    if algorithm.advantage.critic_warmup_steps >= recipe.steps:
        yield RecipeError(
            "algorithm.advantage.critic_warmup_steps",
            f"{algorithm.advantage.critic_warmup_steps} leaves none of the run's {recipe.steps} training steps to the policy",
            f"set it below {recipe.steps}",
        )


def _advantages_that_need_whole_episodes(recipe: Recipe) -> Iterator[RecipeError]:
    advantage = recipe.algorithm.advantage
    of_episodes = (
        OpoAdvantageConfig
        | PassAtKAdvantageConfig
        | MaxRlAdvantageConfig
        | BestOfGroupAdvantageConfig
        | ReinforcePlusPlusAdvantageConfig
        | GdpoAdvantageConfig
        | RemaxAdvantageConfig
    )
    if isinstance(advantage, of_episodes) and not isinstance(recipe.algorithm.credit, EpisodeCreditConfig):
        yield RecipeError(
            "algorithm.credit.kind",
            f"turn does not go with algorithm.advantage of kind {type(advantage).__struct_config__.tag}, which rates episodes",
            "set it to episode, or algorithm.advantage.kind to grpo, rloo or gpg",
        )


def _named_rewards_are_of_episodes(recipe: Recipe) -> Iterator[RecipeError]:
    advantage = recipe.algorithm.advantage
    if (
        isinstance(advantage, CustomAdvantageConfig)
        and advantage.rewards
        and not isinstance(recipe.algorithm.credit, EpisodeCreditConfig)
    ):
        yield RecipeError(
            "algorithm.advantage.rewards",
            f"{', '.join(advantage.rewards)} are known of whole episodes, and algorithm.credit of kind turn compares turns",
            "set algorithm.credit.kind to episode, or take them out",
        )


def _several_rewards_are_weighed_and_stay_what_they_are(recipe: Recipe) -> Iterator[RecipeError]:
    algorithm = recipe.algorithm
    if not isinstance(algorithm.advantage, GdpoAdvantageConfig):
        return
    for name, weight in algorithm.advantage.rewards.items():
        if not name:
            yield RecipeError(
                "algorithm.advantage.rewards",
                f"the weight {exact(weight)} has an empty name",
                "name a metric of the environment, or reward for the final one",
            )
        elif not MIN_WEIGHT <= abs(weight) <= MAX_WEIGHT:
            yield RecipeError(
                f"algorithm.advantage.rewards.{name}",
                f"{exact(weight)} cannot be a weight",
                f"give it a finite number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}, or, for a reward that should be small, from "
                f"{-MAX_WEIGHT:g} to {-MIN_WEIGHT:g}, or take it out",
            )
    taken_off = [
        *(["algorithm.kl.kind"] if isinstance(algorithm.kl, KlInRewardConfig) else []),
        *(["algorithm.overlong"] if algorithm.overlong is not None else []),
    ]
    for place in taken_off:
        yield RecipeError(
            place,
            "it subtracts from the final reward, but algorithm.advantage of kind gdpo compares several rewards",
            "set it to in_loss" if place.endswith("kind") else "take it out, and report a metric of the length as one of them",
        )


def _a_greedy_baseline_is_there_and_like_the_rest(recipe: Recipe) -> Iterator[RecipeError]:
    if not isinstance(recipe.algorithm.advantage, RemaxAdvantageConfig):
        return
    least, size = recipe.batch.min_group, recipe.batch.group_size
    if least is not None and least < size:
        yield RecipeError(
            "batch.min_group",
            f"among {least} of {size} episodes the greedy one may be missing, and algorithm.advantage of kind remax needs it",
            "leave it out",
        )
    if isinstance(recipe.algorithm.kl, KlInRewardConfig):
        yield RecipeError(
            "algorithm.kl.kind",
            "in_reward subtracts a divergence from the rewards of trained episodes, but not from that of the greedy episode",
            "set it to in_loss, or algorithm.advantage.kind to rloo",
        )


def _a_group_has_what_is_compared(recipe: Recipe) -> Iterator[RecipeError]:
    advantage = recipe.algorithm.advantage
    of_group = isinstance(advantage, ReinforcePlusPlusAdvantageConfig) and advantage.baseline == "group"
    if isinstance(advantage, _OF_NO_GROUP) and not of_group:
        return
    kind = advantage.__struct_config__.tag
    problem = f"algorithm.advantage of kind {kind} compares the episodes of a group, and a group of one has nothing to compare"
    if recipe.batch.group_size == 1:
        others = "or take an advantage that compares none: none with a teacher, gae, reinforce_plus_plus"
        yield RecipeError("batch.group_size", problem, f"set it to at least 2, {others}")
    elif recipe.batch.min_group == 1:
        yield RecipeError("batch.min_group", problem, "set it to at least 2, or leave it out")


def _a_try_fits_the_group(recipe: Recipe) -> Iterator[RecipeError]:
    advantage, size = recipe.algorithm.advantage, recipe.batch.group_size
    if isinstance(advantage, PassAtKAdvantageConfig) and advantage.k >= size > 1:
        # With k the group's size, the only set is the whole group, which has nothing to be compared with.
        yield RecipeError(
            "algorithm.advantage.k",
            f"a group of batch.group_size {size} has no two sets of {advantage.k} episodes to compare, so nothing is trained",
            f"set it to at most {size - 1}, or batch.group_size to at least {advantage.k + 1}",
        )
    elif isinstance(advantage, PassAtKAdvantageConfig) and 1 < (least := recipe.batch.min_group or size) <= advantage.k:
        yield RecipeError(
            "batch.min_group",
            f"{least} finished episodes have no two sets of algorithm.advantage.k {advantage.k}, so that nothing is trained",
            f"set it to at least {advantage.k + 1}, or leave it out",
        )


def _ranges_are_not_empty(recipe: Recipe) -> Iterator[RecipeError]:
    loss = recipe.algorithm.loss
    if isinstance(loss, ClipCovLossConfig) and loss.low >= loss.high:
        yield RecipeError(
            "algorithm.loss.low",
            f"{exact(loss.low)} is not below algorithm.loss.high {exact(loss.high)}",
            f"set it below {exact(loss.high)}",
        )
    correction = recipe.algorithm.correction
    ranges = [(f"reject[{number}]", one) for number, one in enumerate(correction.reject) if isinstance(one, RejectRatioConfig)]
    for place, one in [("bound", correction.bound), *ranges]:
        if isinstance(one, MaskBoundConfig | RejectRatioConfig) and one.lower == one.upper:
            yield RecipeError(
                f"algorithm.correction.{place}.lower",
                f"{exact(one.lower)} to {exact(one.upper)} leaves nothing to train",
                "set it lower, or upper higher",
            )


def _a_dual_clip_is_beyond_the_clip(recipe: Recipe) -> Iterator[RecipeError]:
    loss = recipe.algorithm.loss
    if isinstance(loss, PpoClipLossConfig) and 0 < loss.dual_clip <= (highest := 1 + loss.clip_high):
        yield RecipeError(
            "algorithm.loss.dual_clip",
            f"{exact(loss.dual_clip)} is not above 1 + algorithm.loss.clip_high {exact(loss.clip_high)}",
            f"set it above {exact(highest)}, or to 0 for none",
        )


def _a_divergence_in_the_loss_has_a_gradient(recipe: Recipe) -> Iterator[RecipeError]:
    kl = recipe.algorithm.kl
    if isinstance(kl, KlInLossConfig) and not kl.straight_through and kl.estimator in ("k1", "abs"):
        yield RecipeError(
            "algorithm.kl.estimator",
            f"the gradient of {kl.estimator} does not lower the divergence: for k1 it is 0 in expectation, for abs only a sign",
            "set it to k2 or k3, or algorithm.kl.straight_through to true",
        )


def _every_mini_batch_gets_a_group(recipe: Recipe) -> Iterator[RecipeError]:
    groups, parts = recipe.batch.groups_per_step, recipe.algorithm.minibatches
    if groups < parts:
        yield RecipeError(
            "algorithm.minibatches",
            f"{parts} optimizer steps cannot share batch.groups_per_step {groups} groups, which stay whole",
            f"set it to at most {groups}, or batch.groups_per_step to at least {parts}",
        )


ALGORITHM_RULES: tuple[Callable[[Recipe], Iterator[RecipeError]], ...] = (
    _stale_tokens_need_a_correction,
    _the_behaviour_anchor_is_the_correction,
    _a_bound_bounds_a_weight,
    _a_mean_of_weights_does_not_move,
    _an_anchor_needs_a_ratio,
    _who_imitates_corrects_nothing,
    _a_decaying_trust_region_is_a_clip_range,
    _one_advantage_for_a_loss_of_whole_rows,
    _a_critic_values_every_token,
    _advantages_that_need_whole_episodes,
    _named_rewards_are_of_episodes,
    _several_rewards_are_weighed_and_stay_what_they_are,
    _a_greedy_baseline_is_there_and_like_the_rest,
    _a_group_has_what_is_compared,
    _a_try_fits_the_group,
    _ranges_are_not_empty,
    _a_dual_clip_is_beyond_the_clip,
    _a_divergence_in_the_loss_has_a_gradient,
    _every_mini_batch_gets_a_group,
    _an_overlong_penalty_can_be_earned,
    _a_success_stays_one,
)
