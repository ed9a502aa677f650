"""How far a run has come, as shown while it runs."""

from collections.abc import Sequence

import msgspec

from asyncrl.core.measures.time_split import TimeSplit
from asyncrl.run.measures.bottleneck import Bottleneck
from asyncrl.run.measures.summary import PlayedEvaluation


def training_phase(begin: int, steps: int) -> str:
    """Return what the phase is called in which a run trains that has done the first ``begin`` of its ``steps`` training steps."""
    return f"Training steps {begin + 1} to {steps}" if begin < steps else f"No training step is left to train: {steps} are done"


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """State of the run after a training step.

    Attributes:
        step, steps: training steps done, and in all.
        version: the published version.
        reward: mean final reward of the last batch.
        reward_parts: the parts of it that have names, under their metrics' names without ``reward/``.
        time: where the time since the step before went, and what was made in it.
        sampled_tokens: tokens that the model sampled in the episodes of the last batch, whether or not they enter the loss.
        staleness_mean, staleness_max: staleness of the tokens of the last batch, in policy versions.
        staleness_bound: the recipe's ``max_staleness``.
        running, committed: groups being generated, and groups waiting to be trained.
        delivery_s: time from when the last published version was written until every engine had loaded it.
        pause_s: the longest time for which loading it kept an engine from generating.
        pipeline_depth: experience that may be outstanding ahead of the learner, in training steps.
        bottleneck: what holds the run up, and what would help; None while a resumed run repeats training steps.
        eta_s: seconds to the end of the run at its average pace so far.
        evaluation: the last evaluation that ended; None before the first.
    """

    step: int
    steps: int
    version: int
    reward: float
    time: TimeSplit
    sampled_tokens: int
    staleness_mean: float
    staleness_max: float
    staleness_bound: int
    running: int
    committed: int
    delivery_s: float
    pause_s: float
    pipeline_depth: int
    bottleneck: Bottleneck | None
    eta_s: float
    evaluation: PlayedEvaluation | None = None
    reward_parts: dict[str, float] = {}


def smoothed(recent: Sequence[RunProgress]) -> RunProgress:
    """Return the newest of several training steps, with rates and idle shares over the time of all of them."""
    return msgspec.structs.replace(recent[-1], time=sum((each.time for each in recent), TimeSplit()))
