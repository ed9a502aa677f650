"""Names what a run waits for, the key that would change it, and what that would bring.

The learner's time is the run's time: the learner trains, publishes, or waits for a batch. While it waits, engines have
room but no tickets, are paused, evaluate, wait for tools, or generate. No tickets come while finished episodes wait for a
reward model or service, too. The largest of the learner's three shares says
which side holds the run up, except that it is the engines if the learner waits clearly more than they idle. The largest
of the engines' shares then says why.

What a key brings follows Amdahl's law (1967): the share of time that the key divides shrinks, and the rest stays. The
other side and the processor set an upper limit.
"""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from asyncrl.core.measures.time_split import TimeSplit
from asyncrl.core.measures.units import duration, percent
from asyncrl.core.recipe.generators import MOST_RUNNING
from asyncrl.core.recipe.reward import RemoteRewardConfig
from asyncrl.core.recipe.rules.broken_rules import broken_rules
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.section import AUTO
from asyncrl.generators.finished_episodes import FinishedEpisodes

WORTH_SAYING = 1.1
"""The smallest factor for which changing a key is advised."""
CLEARLY_MORE = 0.1
"""The engines hold the run up if the learner's share of waiting exceeds their share of idling by this much."""
ROOM_TO_SPARE = 0.2
"""Engines that had room for a group for this share of the time need no more room."""
SIDE_BY_SIDE = 0.9
"""The part that is left of the idle cores' gain when further processes work side by side with those that kept the others busy."""

MUCH_OUTSIDE = 0.5
"""Where episodes spend more than this share of their own time outside engines, it is said also if generation or pace binds."""

_MORE_AT_ONCE = ("generators.max_running",)


class Kind(StrEnum):
    """What holds a run up."""

    LEARNER = "learner"
    PUBLICATION = "publication"
    EVALUATION = "evaluation"
    STALENESS = "staleness"
    TOOLS = "tools"
    REWARD = "reward"
    GENERATION = "generation"


class Bottleneck(msgspec.Struct, frozen=True):
    """What holds a run up.

    Attributes:
        kind: what it is.
        share: the share of the run's time that it takes, in [0, 1].
        sentence: names it, and what would help.
        factor: by how much the advice would multiply the trajectories per second; None where no key helps.
    """

    kind: Kind
    share: float
    sentence: str
    factor: float | None = None


class SlowTool(msgspec.Struct, frozen=True):
    """The tool whose calls take the most time.

    Attributes:
        share: its calls' share of the time of all calls of tools, in [0, 1].
        call_s: seconds that one of its calls takes, on average.
    """

    name: str
    share: float
    call_s: float

    @classmethod
    def of(cls, several: Iterable[FinishedEpisodes]) -> "SlowTool | None":
        """Find it by what finished episodes report; None if they made no calls."""
        seconds: dict[str, float] = {}
        calls = Counter[str]()
        for finished in several:
            for name, tool in finished.tools.items():
                seconds[name] = seconds.get(name, 0.0) + tool.seconds
                calls[name] += tool.calls
        if not (whole := sum(seconds.values())):
            return None
        slowest = max(seconds, key=seconds.__getitem__)
        return cls(slowest, seconds[slowest] / whole, seconds[slowest] / calls[slowest])

    def __str__(self) -> str:
        return f"tool {self.name} took {percent(self.share)} of the time of all calls, {duration(self.call_s)} a call"


class _Advice(msgspec.Struct, frozen=True):
    """Knobs, their present and their new value, and the factor by which the change divides the time that is lost."""

    keys: tuple[str, ...]
    now: int
    then: int
    divides: float

    def __str__(self) -> str:
        return f"{' and '.join(self.keys)} {self.now} -> {self.then}"

    def breaks(self, recipe: Recipe) -> bool:
        """Whether the recipe with this change would be refused."""
        for key in self.keys:
            section, name = key.split(".")
            changed = msgspec.structs.replace(getattr(recipe, section), **{name: self.then})
            recipe = msgspec.structs.replace(recipe, **{section: changed})
        return next(broken_rules(recipe), None) is not None


def find_bottleneck(time: TimeSplit, recipe: Recipe, depth: int, steps: int, slowest: SlowTool | None = None) -> Bottleneck:
    """Find the bottleneck of the last ``steps`` training steps, of which ``time`` is the sum.

    Args:
        recipe: the run's recipe, with the sizes that its pools have now.
        depth: the pipeline depth now.
        slowest: the tool that took the most time in these steps, where it is known.
    """
    lost = _lost(time)
    engines_hold_up = time.waiting > max(time.publishing, time.idle.generators + CLEARLY_MORE)
    if time.training >= max(time.publishing, time.waiting) and not engines_hold_up:
        kind = Kind.LEARNER
    elif time.publishing >= max(time.training, time.waiting):
        kind = Kind.PUBLICATION
    else:
        kind = max((kind for kind in lost if kind is not Kind.LEARNER), key=lost.__getitem__)
    share = lost[kind]
    over = "training step" if steps == 1 else f"{steps} training steps"
    found = f"{kind}-bound: in the last {over} {_says(kind, time, share, slowest)}"
    advice = _advice(kind, time, recipe, depth)
    if advice.keys == ("buffer.pipeline_depth",) and recipe.buffer.pipeline_depth == AUTO:
        return Bottleneck(kind, share, f"{found}; buffer.pipeline_depth, now {depth}, grows by itself")
    divided = share + _saved_by_a_larger_batch(time) if kind is Kind.PUBLICATION else share
    factor = min(1 / (1 - divided + divided / advice.divides), _room(kind, time, advice))
    if factor < WORTH_SAYING or advice.breaks(recipe):
        return Bottleneck(kind, share, f"{found}; {_no_key(time)}")
    return Bottleneck(kind, share, f"{found}; {advice} would bring about {factor:.1f}x", factor)


def _lost(time: TimeSplit) -> dict[Kind, float]:
    """Divide the learner's time by what takes it; its waits for a batch in proportion to what engines did meanwhile."""
    held_back = time.both_wait
    rest = max(0.0, 1 - time.idle.generators - time.evaluating)
    engines = {
        Kind.PUBLICATION: time.paused,
        Kind.EVALUATION: time.evaluating,
        Kind.TOOLS: max(0.0, time.idle.generators - time.paused - held_back) + rest * max(0.0, 2 * time.tools - 1),
        Kind.GENERATION: rest * min(1.0, 2 - 2 * time.tools),
    }
    whole = sum(engines.values()) or 1.0
    lost = {kind: (time.waiting - held_back) * part / whole for kind, part in engines.items()}
    lost[Kind.PUBLICATION] += time.publishing
    scoring = held_back * time.scoring  # episodes that wait for their score keep their place in the pipeline
    return {Kind.LEARNER: time.training, Kind.STALENESS: held_back - scoring, Kind.REWARD: scoring, **lost}


def _says(kind: Kind, time: TimeSplit, share: float, slowest: SlowTool | None) -> str:
    waited = f"the learner waited for {percent(share)} of the time"
    outside = f"spent {percent(time.tools)} of their own time outside engines{f' ({slowest})' if slowest else ''}"
    also = f", and episodes {outside}" if time.tools > MUCH_OUTSIDE else ""
    match kind:
        case Kind.LEARNER:
            return f"the learner trained for {percent(share)} of the time, and engines idled for {percent(time.idle.generators)}"
        case Kind.PUBLICATION:
            return f"publishing weights took {percent(share)} of the time"
        case Kind.EVALUATION:
            return f"{waited} because engines were evaluating"
        case Kind.STALENESS:
            return f"{waited} while engines had room, but the pipeline depth allowed no more tickets{also}"
        case Kind.TOOLS:
            return f"{waited} for episodes, which {outside}"
        case Kind.REWARD:
            return f"{waited} for finished episodes, which waited for their score for {percent(time.scoring)} of their time"
        case Kind.GENERATION:
            return f"{waited} for engines to generate{also}"


def _advice(kind: Kind, time: TimeSplit, recipe: Recipe, depth: int) -> _Advice:
    match kind:
        case Kind.LEARNER:
            ranks = recipe.learner.data_parallel
            return _Advice(("learner.data_parallel",), ranks, 2 * ranks, 2)
        case Kind.PUBLICATION:
            groups = recipe.batch.groups_per_step
            return _Advice(("batch.groups_per_step",), groups, 2 * groups, 2)
        case Kind.EVALUATION:
            every = recipe.evaluation.every
            return _Advice(("evaluation.every",), every, 2 * every, 2)
        case Kind.TOOLS | Kind.GENERATION if time.held_back < ROOM_TO_SPARE and _could_play_more(recipe, depth):
            running = recipe.generators.max_running
            return _Advice(_MORE_AT_ONCE, running, 2 * running, 2)
        case Kind.REWARD if isinstance(recipe.reward, RemoteRewardConfig):
            requests = recipe.reward.requests
            return _Advice(("reward.requests",), requests, 2 * requests, 2)
        case Kind.STALENESS | Kind.TOOLS | Kind.REWARD:
            fixed, bound = recipe.buffer.pipeline_depth != AUTO, recipe.buffer.max_staleness
            both = ("buffer.max_staleness", "buffer.pipeline_depth") if fixed else ("buffer.max_staleness",)
            keys = ("buffer.pipeline_depth",) if depth < bound else both
            # With depth d, d + 1 batches are under way side by side.
            return _Advice(keys, depth, depth + 1, 2 if kind is Kind.STALENESS else (depth + 2) / (depth + 1))
        case Kind.GENERATION:
            now, engines = recipe.generators.count, _training_engines(recipe)
            return _Advice(("generators.count",), now, now + 1, (engines + 1) / engines)


def _could_play_more(recipe: Recipe, depth: int) -> bool:
    """Whether an engine's share of the episodes that may be under way exceeds what it may play at once.

    What a step of an engine costs depends little on how many episodes it computes, so more of them at once raise its rate.
    """
    under_way = (depth + 1) * recipe.batch.groups_per_step * recipe.batch.group_size
    most = MOST_RUNNING * recipe.generators.data_parallel
    return recipe.generators.max_running < min(most, under_way / _training_engines(recipe))


def _training_engines(recipe: Recipe) -> int:
    """How many engines play training episodes, in all pools together."""
    return sum(pool.count for pool in recipe.generators.training.values())


def _saved_by_a_larger_batch(time: TimeSplit) -> float:
    """The share of time, besides publishing itself, that a training step takes only once if its batch is twice as large.

    That is updating the weights, and what the larger batch trains while engines still get the version before.
    """
    return time.optimizer + min(time.delivering, time.training - time.optimizer)


def _room(kind: Kind, time: TimeSplit, advice: _Advice) -> float:
    """The largest factor that the other side allows, and also the processor, where more would be computed at once."""
    least = time.training + time.publishing
    if kind is Kind.LEARNER:
        least = 1 - time.idle.generators
    elif kind is Kind.PUBLICATION:
        fixed = time.publishing + _saved_by_a_larger_batch(time)
        least = max(1 - time.idle.generators, time.training + time.publishing - fixed + fixed / advice.divides)
    if kind in (Kind.LEARNER, Kind.GENERATION, Kind.EVALUATION, Kind.STALENESS) and advice.keys != _MORE_AT_ONCE:
        least = max(least, time.busy_cores / SIDE_BY_SIDE)
    return 1 / max(0.01, least)


def _no_key(time: TimeSplit) -> str:
    if time.busy_cores > SIDE_BY_SIDE / WORTH_SAYING:
        busy = percent(time.busy_cores)
        return f"no key helps, because processor cores are busy for {busy} of the time: a smaller model or more cores would help"
    return "no key helps much: something else would hold the run up next"
