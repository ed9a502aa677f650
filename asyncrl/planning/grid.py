"""The recipes that a plan compares: a grid over keys, or the splits of a budget of GPUs; and which of them are worth choosing."""

from collections.abc import Sequence
from itertools import product

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.measures.units import percent
from asyncrl.core.recipe.schema import Recipe
from asyncrl.planning.prediction import Prediction
from asyncrl.run.recipe.sweep_axes import Axis, RepeatedValue, read_axes

MOST_POINTS = 400
"""The most recipes that one plan compares."""
SAME = 0.02
"""Throughputs that differ by less are as good as each other."""
CLEARLY = 0.05
"""What asynchronous training must bring at least where the intervals overlap."""
MANY = 0.05
"""The share of tokens that are too old from which on a verdict names it."""
DEPTHS = (1, 2, 4)
"""The pipeline depths that a budget is tried with, within the recipe's ``buffer.max_staleness``."""
_OF_OTHER_VALUES = frozenset(",{[('\"/")
"""What no span holds: a colon beside it is one of a mapping, a list, a quoted text or an address."""


def axes_to_vary(recipe: str, texts: Sequence[str]) -> list[Axis]:
    """Read the axes of a grid: ``key=a:b`` or ``key=a:b:step`` (whole numbers, with both ends), or values in Hydra's grammar.

    Args:
        recipe: path or name of the recipe, whose config groups values may name.

    Raises:
        RecipeError: a text is neither, has too many values or one twice, or a key is given twice.
    """
    axes: dict[str, Axis] = {}
    for text in texts:
        axis = _axis(recipe, text)
        if axis.key in axes:
            raise RecipeError("--vary", f"{axis.key} is given twice", f"give its values once, as {axis.key}=1,2,4")
        axes[axis.key] = axis
    return list(axes.values())


def _axis(recipe: str, text: str) -> Axis:
    key, equals, values = text.partition("=")
    if not key or not equals or not values:
        raise RecipeError(
            "--vary", f"{text!r} names no key with values", "write generators.count=1:8 or buffer.max_staleness=0,1,2,4"
        )
    if ":" in values and _OF_OTHER_VALUES.isdisjoint(values):
        return Axis(key, _span(key, values))
    try:
        varied = read_axes(recipe, [text])
    except RepeatedValue as error:  # its remedy is that of sweeps, whose --seeds means something else
        raise RecipeError("--vary", f"{text!r} gives a value twice", "give each value once") from error
    except RecipeError as error:
        raise RecipeError("--vary", f"{text!r}: {error.problem}", error.remedy) from error
    return varied.axes[0] if varied.axes else Axis(key, (values,))


def _span(key: str, values: str) -> tuple[str, ...]:
    try:
        ends = [int(each) for each in values.split(":")]
        span = range(ends[0], ends[1] + 1, *ends[2:])
    except (ValueError, TypeError, IndexError) as error:
        problem = f"{values!r} is no span of whole numbers"
        raise RecipeError("--vary", problem, f"write {key}=1:8, or {key}=2:16:2 for every second") from error
    if not span or span.step < 0:
        raise RecipeError("--vary", f"the span {values!r} of {key} does not go upwards", "put the smaller number first")
    if span[MOST_POINTS:]:
        count = (span.stop - span.start - 1) // span.step + 1
        problem = f"the span {values!r} of {key} has {count:,} points, and at most {MOST_POINTS} are compared"
        raise RecipeError("--vary", problem, f"give fewer values, such as {key}={ends[0]}:{ends[1]}:{-(-count // 8)}")
    return tuple(map(str, span))


def points(axes: Sequence[Axis]) -> list[tuple[str, ...]]:
    """Return the overrides of each point of the grid, in order; one without overrides if there is no axis.

    Raises:
        RecipeError: there are too many.
    """
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MOST_POINTS:
        raise RecipeError("--vary", f"the grid has {count:,} points, and at most {MOST_POINTS} are compared", "give fewer values")
    return [
        tuple(f"{axis.key}={value}" for axis, value in zip(axes, values, strict=True))
        for values in product(*(a.values for a in axes))
    ]


def splits(recipe: Recipe, gpus: int) -> list[tuple[str, ...]]:
    """Return the overrides of each way to divide ``gpus`` between learner and engines, with several depths.

    Raises:
        RecipeError: there are too few for the fewest ranks and one engine, or the recipe has several pools.
    """
    if recipe.generators.pools:
        raise RecipeError(
            "--gpus", "the recipe has several pools, which share no budget", "vary their counts with --vary instead"
        )
    layout = msgspec.structs.replace(recipe.learner, data_parallel=1).layout
    least, groups = layout.least_data, recipe.batch.groups_per_step
    learner, engine = least * layout.ranks, recipe.generators.engine_workers
    most = min((gpus - engine) // learner, min(groups, recipe.fewest_episodes) // least)
    if gpus < learner + engine:
        problem = f"{gpus} GPUs are too few for a learner of {learner} and an engine of {engine}"
        remedy = "give more, or make the parallel sizes of section learner or generators.tensor_parallel smaller"
        raise RecipeError("--gpus", problem, remedy)
    if most < 1:
        problem = f"batch.groups_per_step {groups} is too few for the {least} ranks that divide the experts"
        fewest = msgspec.structs.replace(
            recipe, learner=msgspec.structs.replace(recipe.learner, data_parallel=least)
        ).fewest_groups
        raise RecipeError("--gpus", problem, f"raise it to at least {max(least, fewest)}")
    ranks = sorted({max(1, round(most * share / 16)) for share in range(1, 16)} | {1, most})
    depths = [depth for depth in DEPTHS if depth <= recipe.buffer.max_staleness] or [recipe.buffer.max_staleness]
    return [
        (
            f"learner.data_parallel={number * least}",
            f"generators.count={(gpus - number * learner) // engine}",
            f"buffer.pipeline_depth={depth}",
        )
        for number in ranks
        for depth in depths
    ]


def front(predictions: Sequence[Prediction]) -> list[int]:
    """Return the places of the predictions than which no other is both faster and fresher, the freshest first. What is fresher by
    less than its interval is not fresher."""
    worth = [
        place
        for place, each in enumerate(predictions)
        if not any(
            speed_of(other) > speed_of(each) * (1 + SAME) and _staleness(other) <= each.staleness_mean.high
            for other in predictions
        )
    ]
    order = sorted(worth, key=lambda place: (_staleness(predictions[place]), -speed_of(predictions[place])))
    chosen: list[int] = []
    best = 0.0
    for place in order:
        if speed_of(predictions[place]) > best * (1 + SAME):
            chosen.append(place)
            best = speed_of(predictions[place])
    return chosen


def verdict(predictions: Sequence[Prediction], synchronous: Prediction | None) -> str:
    """Say whether asynchronous training pays, and which of the predictions to take.

    Args:
        synchronous: the same resources with ``buffer.max_staleness`` 0; None where that is not known.
    """
    best = fastest(predictions)
    speed = f"{best.trajectories_per_s.mean:.3g} trajectories/s"
    said = f"fastest: {best.name}, {speed} at a staleness of {best.staleness_mean.mean:.2f}"
    if best.masked.mean >= MANY:
        said += f", but {percent(best.masked.mean)} of the sampled tokens are too old to be trained: lower buffer.pipeline_depth"
    if synchronous is None:
        return said
    gain = speed_of(best) / max(1e-12, speed_of(synchronous))
    beside = f"{synchronous.trajectories_per_s.mean:.3g} trajectories/s, of which the fastest has {gain:.2f} times as many"
    if best.masked.mean >= MANY:
        beside += " without what is too old"
    overlaps = best.trajectories_per_s.low <= synchronous.trajectories_per_s.high
    if gain <= 1 + SAME or (overlaps and gain < 1 + CLEARLY):
        return f"synchronous is better: buffer.max_staleness=0 has no staleness, and {beside}"
    return f"{said}; synchronous training would be slower ({beside})"


def fastest(predictions: Sequence[Prediction]) -> Prediction:
    """The prediction that trains most."""
    return max(predictions, key=speed_of)


def speed_of(prediction: Prediction) -> float:
    """Trajectories a second, less the share of their tokens that are too old: those wait in a batch and bring nothing."""
    return prediction.trajectories_per_s.mean * (1 - prediction.masked.mean)


def shown(overrides: Sequence[str]) -> str:
    """Return a short name of a point: its overrides without the sections of their keys, as far as these tell them apart."""
    keys = [each.partition("=")[0] for each in overrides]
    last = [key.rpartition(".")[2] for key in keys]
    kept = last if len(set(last)) == len(last) else keys
    return " ".join(f"{key}={each.partition('=')[2]}" for key, each in zip(kept, overrides, strict=True)) or "as it is"


def _staleness(prediction: Prediction) -> float:
    return prediction.staleness_mean.mean
