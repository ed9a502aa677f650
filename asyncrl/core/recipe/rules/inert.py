"""Finds keys of a recipe that have no effect, and says which change would give them one.

A penalty for malformed calls only acts where the recipe says that they are penalised. With one optimizer step a batch, the
policy that the step starts from is the recomputed anchor itself: every ratio is exactly 1, nothing is ever clipped, and each
loss has the gradient of plain REINFORCE. What the correction does beside the ratio (importance weight, its bound, rejection)
does not depend on this.
"""

from collections.abc import Callable, Iterator

from asyncrl.core.recipe.advantage import GaeAdvantageConfig, NoAdvantageConfig
from asyncrl.core.recipe.algorithm import TurnCreditConfig
from asyncrl.core.recipe.buffer import NoJournalConfig, PrioritisedSamplerConfig
from asyncrl.core.recipe.correction import CorrectionConfig
from asyncrl.core.recipe.custom import LinearScheduleConfig
from asyncrl.core.recipe.environment import EpisodeConfig, member_place
from asyncrl.core.recipe.loss import ClipCovLossConfig, DivergenceMaskLossConfig
from asyncrl.core.recipe.notify import NotifyConfig
from asyncrl.core.recipe.schema import CheckpointConfig, EvaluationConfig, Recipe
from asyncrl.core.recipe.tasks import FileTasksConfig


def inert(recipe: Recipe) -> str | None:
    """Return one line that says which keys have no effect, why, and what would give them one; None if there are no such keys."""
    return "; ".join(said for found in _FOUND for said in found(recipe)) or None


def _in_the_loss(recipe: Recipe) -> Iterator[str]:
    algorithm = recipe.algorithm
    loss, correction = algorithm.loss, algorithm.correction
    # A dual_clip of 0 is off, so it is not named.
    keys = [f"algorithm.loss.{name}" for name in loss.ratio_keys if getattr(loss, name) != 0]
    if not keys or algorithm.optimizer_steps > 1 or correction.anchor != "proximal_recomputed":
        return
    if correction.trust_region_decay < 1 and recipe.buffer.max_staleness > 0:
        keys.append("algorithm.correction.trust_region_decay")
    remedies, by_behaviour = [_more_steps(recipe)], _by_behaviour(correction)
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
    if (
        isinstance(advantage, GaeAdvantageConfig)
        and advantage.length_adaptive_alpha
        and advantage.lam != GaeAdvantageConfig().lam
    ):
        yield (
            "algorithm.advantage.lam cannot act: with algorithm.advantage.length_adaptive_alpha above 0 it follows from the "
            "episode's length; set algorithm.advantage.length_adaptive_alpha=0"
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


def _where_nothing_is_stale(recipe: Recipe) -> Iterator[str]:
    bound, correction, sampler = recipe.buffer.max_staleness, recipe.algorithm.correction, recipe.buffer.sampler
    keys = ["algorithm.correction.trust_region_decay"] if correction.trust_region_decay < 1 else []
    if isinstance(sampler, PrioritisedSamplerConfig) and sampler.staleness_decay < 1:
        keys.append("buffer.sampler.staleness_decay")
    if bound == 0 and keys:
        uncorrected = correction.weight == "none" and correction.anchor != "behaviour" and not recipe.algorithm.loss.imitates
        weighed = " algorithm.correction.weight=token" if uncorrected else ""
        yield f"{', '.join(keys)} cannot act: with buffer.max_staleness 0 no token is stale; set buffer.max_staleness=1{weighed}"
    by_level = isinstance(correction.weight, str) and correction.weight != "none"
    if bound <= 1 and by_level and correction.anchor == "proximal_log_linear":
        yield (
            f"algorithm.correction.weight {correction.weight} cannot act: with buffer.max_staleness {bound} the anchor "
            "proximal_log_linear is the policy that sampled each token, and every weight is 1; set buffer.max_staleness=2, or "
            f"{_by_behaviour(correction)}"
        )


def _without_an_advantage(recipe: Recipe) -> Iterator[str]:
    algorithm = recipe.algorithm
    if isinstance(algorithm.advantage, NoAdvantageConfig) and isinstance(algorithm.credit, TurnCreditConfig):
        yield (
            "algorithm.credit of kind turn cannot act: algorithm.advantage of kind none is 0 for every turn; set "
            "algorithm.credit={kind:episode}"
        )


def _in_the_sampler(recipe: Recipe) -> Iterator[str]:
    sampler = recipe.buffer.sampler
    usual = PrioritisedSamplerConfig()
    if isinstance(sampler, PrioritisedSamplerConfig) and sampler.exponent == 0 and sampler.floor != usual.floor:
        yield (
            "buffer.sampler.floor cannot act: with buffer.sampler.exponent 0 the advantage makes no difference; set "
            f"buffer.sampler.exponent={usual.exponent:g}"
        )


def _in_the_schedule(recipe: Recipe) -> Iterator[str]:
    learner, last = recipe.learner, recipe.steps - 1
    if isinstance(learner.schedule, LinearScheduleConfig) and learner.min_lr_ratio < 1 and 0 < last <= learner.warmup_steps:
        yield (
            f"learner.min_lr_ratio cannot act: learner.warmup_steps {learner.warmup_steps} of {recipe.steps} steps leave none in "
            f"which the learning rate could fall; set learner.warmup_steps={last - 1}"
        )


def _in_the_evaluation(recipe: Recipe) -> Iterator[str]:
    evaluation, usual = recipe.evaluation, EvaluationConfig()
    keys = [f"evaluation.{key}" for key in ("top_p", "top_k", "min_p") if getattr(evaluation, key) != getattr(usual, key)]
    if evaluation.temperature == 0 and keys:
        yield f"{', '.join(keys)} cannot act: with evaluation.temperature 0 sampling is greedy; set evaluation.temperature=1"
    if isinstance(recipe.tasks, FileTasksConfig):
        weighed = [f"tasks.evaluation[{index}].weight" for index, one in enumerate(recipe.tasks.evaluation) if one.weight != 1]
        if weighed:
            them = "it" if len(weighed) == 1 else "them"
            yield f"{', '.join(weighed)} cannot act: an evaluation plays every held-out task; leave {them} out"


def _without_a_journal(recipe: Recipe) -> Iterator[str]:
    usual = CheckpointConfig()
    keys = [f"checkpoint.{key}" for key in ("every", "keep", "dir") if getattr(recipe.checkpoint, key) != getattr(usual, key)]
    if isinstance(recipe.buffer.journal, NoJournalConfig) and keys:
        yield (
            f"{', '.join(keys)} cannot act: without a journal nothing could be resumed, and no checkpoint is made; set "
            "buffer.journal.kind=append_only"
        )


def _of_the_end(recipe: Recipe) -> Iterator[str]:
    notify = recipe.notify
    if notify.when != NotifyConfig().when and not notify.command and notify.url is None:
        yield "notify.when cannot act: nobody is told when the run ends; set notify.command or notify.url"


def _by_behaviour(correction: CorrectionConfig) -> str:
    """Return the overrides that anchor the ratio at the policy that sampled each token, where no weight is left to be bounded."""
    unbounded = "" if correction.bound == CorrectionConfig().bound else " ~algorithm.correction.bound"
    return f"algorithm.correction.anchor=behaviour algorithm.correction.weight=none{unbounded}"


def _more_steps(recipe: Recipe) -> str:
    """Return the override that gives a batch several optimizer steps. Mini-batches hold whole groups, so one group cannot be
    split."""
    return "algorithm.minibatches=2" if recipe.batch.groups_per_step > 1 else "algorithm.epochs=2"


_FOUND: tuple[Callable[[Recipe], Iterator[str]], ...] = (
    _in_the_loss,
    _in_the_critic,
    _where_nothing_is_stale,
    _without_an_advantage,
    _in_the_sampler,
    _in_the_schedule,
    _in_the_environment,
    _in_the_evaluation,
    _without_a_journal,
    _of_the_end,
)
