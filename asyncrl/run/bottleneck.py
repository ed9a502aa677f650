"""Names what a run waits for, the knob that would change it, and what that would bring.

The learner's time is the run's: it trains, publishes, or waits for a batch. While it waits, engines have no tickets although they
have room, are paused, evaluate, wait for tools, or generate. The largest share names the bottleneck.

What a knob brings is Amdahl's law (1967): the share of time that the knob divides shrinks, the rest stays, and neither the other
side nor the processor gives more than it has.
"""

from enum import StrEnum

import msgspec

from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.shares import Shares
from asyncrl.run.units import percent

WORTH_SAYING = 1.1
"""The smallest factor for which changing a knob is advised."""


class Kind(StrEnum):
    """What holds a run up."""

    LEARNER = "learner"
    PUBLICATION = "publication"
    EVALUATION = "evaluation"
    STALENESS = "staleness"
    TOOLS = "tools"
    GENERATION = "generation"


class Bottleneck(msgspec.Struct, frozen=True):
    """What holds a run up.

    Attributes:
        kind: what it is.
        share: the share of the run's time that it takes, in [0, 1].
        sentence: says it, and what would help.
        factor: how many times as many trajectories a second the advice would bring; None where no knob helps.
    """

    kind: Kind
    share: float
    sentence: str
    factor: float | None = None


class _Advice(msgspec.Struct, frozen=True):
    """A knob, its value now and instead, and the factor by which that divides the time that is lost."""

    knob: str
    now: int
    then: int
    divides: float


def find_bottleneck(shares: Shares, recipe: Recipe, depth: int, steps: int) -> Bottleneck:
    """The bottleneck of the last ``steps`` training steps, of which ``shares`` is the mean.

    Args:
        recipe: of the run.
        depth: the pipeline depth now.
    """
    lost = _lost(shares)
    kind = max(lost, key=lost.__getitem__)
    share = lost[kind]
    found = f"{kind}-bound: in the last {steps} training steps {_says(kind, shares, share)}"
    advice = _advice(kind, recipe, depth)
    factor = min(_amdahl(share, advice.divides), _room(kind, shares))
    if factor < WORTH_SAYING:
        return Bottleneck(kind, share, f"{found}; {_no_knob(shares)}")
    sentence = f"{found}; {advice.knob} {advice.now} -> {advice.then} would bring about {factor:.1f}x"
    return Bottleneck(kind, share, sentence, factor)


def _lost(shares: Shares) -> dict[Kind, float]:
    """The learner's time by what takes it; its waits for a batch in proportion to what the engines did meanwhile."""
    held_back = max(0.0, shares.both_wait)
    evaluating = shares.evaluating / 2  # engines evaluate and train side by side
    rest = max(0.0, 1 - shares.idle - evaluating)
    engines = {
        Kind.PUBLICATION: shares.paused,
        Kind.EVALUATION: evaluating,
        Kind.TOOLS: max(0.0, shares.idle - shares.paused - held_back) + rest * max(0.0, 2 * shares.tools - 1),
        Kind.GENERATION: rest * min(1.0, 2 - 2 * shares.tools),
    }
    whole = sum(engines.values()) or 1.0
    lost = {kind: (shares.waiting - held_back) * part / whole for kind, part in engines.items()}
    lost[Kind.PUBLICATION] += shares.publishing
    return {Kind.LEARNER: shares.training, Kind.STALENESS: held_back, **lost}


def _says(kind: Kind, shares: Shares, share: float) -> str:
    waited = f"the learner waited for {percent(share)} of the time"
    match kind:
        case Kind.LEARNER:
            return f"the learner trained for {percent(share)} of the time, and generators idled for {percent(shares.idle)}"
        case Kind.PUBLICATION:
            return f"publishing weights took {percent(share)} of the time"
        case Kind.EVALUATION:
            return f"{waited} because engines were evaluating"
        case Kind.STALENESS:
            return f"{waited} because engines had room, and no tickets without going over the pace"
        case Kind.TOOLS:
            return f"{waited} for episodes, which spent {percent(shares.tools)} of theirs in tools"
        case Kind.GENERATION:
            return f"{waited} for engines to generate"


def _advice(kind: Kind, recipe: Recipe, depth: int) -> _Advice:
    match kind:
        case Kind.LEARNER:
            ranks = recipe.learner.data_parallel
            return _Advice("learner.data_parallel", ranks, 2 * ranks, 2)
        case Kind.PUBLICATION:
            groups = recipe.batch.groups_per_step
            return _Advice("batch.groups_per_step", groups, 2 * groups, 2)
        case Kind.EVALUATION:
            every = recipe.evaluation.every
            return _Advice("evaluation.every", every, 2 * every, 2)
        case Kind.STALENESS if depth < recipe.buffer.max_staleness:
            return _Advice("buffer.pipeline_depth", depth, depth + 1, 2)
        case Kind.STALENESS:
            bound = recipe.buffer.max_staleness
            return _Advice("buffer.max_staleness", bound, bound + 1, 2)
        case Kind.TOOLS:
            running = recipe.generators.max_running
            return _Advice("generators.max_running", running, 2 * running, 2)
        case Kind.GENERATION:
            engines = recipe.generators.count
            return _Advice("generators.count", engines, engines + 1, (engines + 1) / engines)


def _amdahl(share: float, divides: float) -> float:
    return 1 / (1 - share + share / divides)


def _room(kind: Kind, shares: Shares) -> float:
    """The largest factor that the other side allows, and the processor where the time is spent computing."""
    most = 1 / max(0.01, 1 - shares.idle) if kind is Kind.LEARNER else 1 / max(0.01, shares.training + shares.publishing)
    if kind in (Kind.LEARNER, Kind.GENERATION, Kind.EVALUATION, Kind.STALENESS):
        most = min(most, 1 / max(0.01, shares.cores))
    return most


def _no_knob(shares: Shares) -> str:
    if shares.cores > 1 / WORTH_SAYING:
        return "no knob helps, because all processor cores are busy: a smaller model, shorter episodes or more cores would"
    return "no knob helps much: learner and engines keep pace with each other"
