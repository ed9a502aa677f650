"""How far a run has come, as shown while it runs."""

from collections.abc import Sequence

import msgspec

from asyncrl.run.measures.bottleneck import Bottleneck
from asyncrl.run.measures.summary import PlayedEvaluation
from asyncrl.run.measures.time_split import Shares


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """State of the run after a training step. Rates and idle shares are over the time since the step before.

    Attributes:
        step, steps: training steps done, and in all.
        version: the published version.
        reward: mean final reward of the last batch.
        reward_parts: the parts of it that have names, under their metrics' names without ``reward/``.
        generator_tokens_per_s: tokens sampled by all engines together.
        learner_tokens_per_s: tokens trained.
        trajectories_per_s: episodes trained.
        sampled_tokens: tokens that the model sampled in the episodes of the last batch, whether or not they enter the loss.
        staleness_mean, staleness_max: staleness of the tokens of the last batch, in policy versions.
        staleness_bound: the recipe's ``max_staleness``.
        running, committed: groups being generated, and groups waiting to be trained.
        publish_seconds: time from when the last published version was written until every engine had loaded it.
        pause_seconds: the longest time for which loading it kept an engine from generating.
        idle_generators, idle_learner: shares of time in [0, 1].
        shares: what the last training step's time was spent on.
        pipeline_depth: experience that may be outstanding ahead of the learner, in training steps.
        bottleneck: what holds the run up, and what would help; None while a resumed run repeats training steps.
        eta_s: seconds to the end of the run at its average pace so far.
        evaluation: the last evaluation that ended; None before the first.
    """

    step: int
    steps: int
    version: int
    reward: float
    generator_tokens_per_s: float
    learner_tokens_per_s: float
    trajectories_per_s: float
    sampled_tokens: int
    staleness_mean: float
    staleness_max: float
    staleness_bound: int
    running: int
    committed: int
    publish_seconds: float
    pause_seconds: float
    idle_generators: float
    idle_learner: float
    shares: Shares
    pipeline_depth: int
    bottleneck: Bottleneck | None
    eta_s: float
    evaluation: PlayedEvaluation | None = None
    reward_parts: dict[str, float] = {}


_RATES = ("generator_tokens_per_s", "learner_tokens_per_s", "trajectories_per_s", "idle_generators", "idle_learner")


def smoothed(recent: Sequence[RunProgress]) -> RunProgress:
    """Return the newest of several training steps, with rates and idle shares over the time of all of them."""
    seconds = sum(each.shares.seconds for each in recent)
    rates = {name: sum(getattr(each, name) * each.shares.seconds for each in recent) / seconds for name in _RATES}
    return msgspec.structs.replace(recent[-1], **rates)
