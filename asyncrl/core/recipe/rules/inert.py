"""Finds keys of a recipe that have no effect, and says which change would give them one.

A penalty for malformed calls only acts where the recipe says that they are penalised. With one optimizer step a batch, the
policy that the step starts from is the recomputed anchor itself: every ratio is exactly 1, nothing is ever clipped, and each
loss has the gradient of plain REINFORCE. What the correction does beside the ratio (importance weight, its bound, rejection)
does not depend on this.
"""

from collections.abc import Iterator

from asyncrl.core.recipe.advantage import GaeAdvantageConfig
from asyncrl.core.recipe.correction import CorrectionConfig
from asyncrl.core.recipe.environment import EpisodeConfig, member_place
from asyncrl.core.recipe.loss import ClipCovLossConfig, DivergenceMaskLossConfig
from asyncrl.core.recipe.schema import Recipe


def inert(recipe: Recipe) -> str | None:
    """Return one line that says which keys have no effect, why, and what would give them one; None if there are no such keys."""
    return "; ".join([*_in_the_loss(recipe), *_in_the_critic(recipe), *_in_the_environment(recipe)]) or None


def _in_the_loss(recipe: Recipe) -> Iterator[str]:
    algorithm = recipe.algorithm
    loss, correction = algorithm.loss, algorithm.correction
    # A dual_clip of 0 is off, so it is not named.
    keys = [f"algorithm.loss.{name}" for name in loss.ratio_keys if getattr(loss, name) != 0]
    if not keys or algorithm.optimizer_steps > 1 or correction.anchor != "proximal_recomputed":
        return
    if correction.trust_region_decay < 1:
        keys.append("algorithm.correction.trust_region_decay")
    remedies, by_behaviour = [_more_steps(recipe)], "algorithm.correction.anchor=behaviour algorithm.correction.weight=none"
    if correction.bound != CorrectionConfig().bound:
        by_behaviour += " ~algorithm.correction.bound"
    if isinstance(loss, DivergenceMaskLossConfig):
        remedies.insert(0, f"{by_behaviour} (as published)")
    elif recipe.buffer.max_staleness > 0:
        remedies.append(by_behaviour)
    drawn = ", but for the tokens it draws" if isinstance(loss, ClipCovLossConfig) else ""
    yield (
        f"{', '.join(keys)} cannot act: with one optimizer step a batch and algorithm.correction.anchor proximal_recomputed "
        f"every ratio is 1, and algorithm.loss of kind {type(loss).__struct_config__.tag} is plain REINFORCE{drawn} (the "
        f"importance weight, its bound and rejection do act); set {', or '.join(remedies)}"
    )


def _in_the_critic(recipe: Recipe) -> Iterator[str]:
    advantage = recipe.algorithm.advantage
    if isinstance(advantage, GaeAdvantageConfig) and advantage.value_clip and recipe.algorithm.optimizer_steps == 1:
        yield (
            "algorithm.advantage.value_clip cannot act: the critic's one step on a batch starts from the values it is to stay "
            f"near; set {_more_steps(recipe)}"
        )


def _in_the_environment(recipe: Recipe) -> Iterator[str]:
    usual = EpisodeConfig().malformed_penalty
    for name, member in recipe.environment.by_member.items():
        if member.on_malformed_call != "penalise" and member.malformed_penalty != usual:
            place = member_place(name)
            yield (
                f"{place}.malformed_penalty cannot act: {place}.on_malformed_call is {member.on_malformed_call}, which takes "
                f"nothing from the reward; set {place}.on_malformed_call=penalise"
            )


def _more_steps(recipe: Recipe) -> str:
    """Return the override that gives a batch several optimizer steps. Mini-batches hold whole groups, so one group cannot be
    split."""
    return "algorithm.minibatches=2" if recipe.batch.groups_per_step > 1 else "algorithm.epochs=2"
