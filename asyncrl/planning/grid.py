"""The recipes that a plan compares: a grid over keys, or the splits of a budget of GPUs; and which of them are worth choosing."""

from collections.abc import Sequence
from itertools import product

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.planning.prediction import Prediction

MOST_POINTS = 400
"""The most recipes that one plan compares."""
SAME = 0.02
"""Throughputs that differ by less are as good as each other."""
CLEARLY = 0.05
"""What asynchronous training must bring at least where the intervals overlap."""
DEPTHS = (1, 2, 4)
"""The pipeline depths that a budget is tried with, within the recipe's ``buffer.max_staleness``."""


class Axis(msgspec.Struct, frozen=True):
    """A key of the recipe, and the values that it is to have."""

    key: str
    values: tuple[str, ...]


def read_axis(text: str) -> Axis:
    """Read ``key=a:b`` (whole numbers, both ends included), ``key=a:b:step`` or ``key=a,b,c``.

    Raises:
        RecipeError: it is neither.
    """
    key, equals, values = text.partition("=")
    if not key or not equals or not values:
        raise RecipeError(
            "--vary", f"{text!r} names no key with values", "write generators.count=1:8 or buffer.max_staleness=0,1,2,4"
        )
    if ":" in values and "," not in values:
        try:
            ends = [int(each) for each in values.split(":")]
            span = range(ends[0], ends[1] + 1, *ends[2:])
        except (ValueError, TypeError, IndexError) as error:
            problem = f"{values!r} is no span of whole numbers"
            raise RecipeError("--vary", problem, f"write {key}=1:8, or {key}=2:16:2 for every second") from error
        if not span or span.step < 0:
            raise RecipeError("--vary", f"the span {values!r} of {key} does not go upwards", "put the smaller number first")
        return Axis(key, tuple(map(str, span)))
    listed = tuple(each.strip() for each in values.split(",") if each.strip())
    if not listed:
        raise RecipeError("--vary", f"{text!r} gives {key} no value", f"write {key}=1,2,4")
    return Axis(key, listed)


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
        RecipeError: there are too few for one rank and one engine, or the recipe has several pools.
    """
    if recipe.generators.pools:
        raise RecipeError(
            "--gpus", "the recipe has several pools, which share no budget", "vary their counts with --vary instead"
        )
    layout = msgspec.structs.replace(recipe.learner, data_parallel=1).layout
    learner, engine = layout.ranks, recipe.generators.engine_workers
    most = (gpus - engine) // learner
    if most < 1:
        problem = f"{gpus} GPUs are too few for a learner of {learner} and an engine of {engine}"
        raise RecipeError("--gpus", problem, "give more, or make learner.tensor_parallel or generators.tensor_parallel smaller")
    ranks = sorted({max(1, round(most * share / 16)) for share in range(1, 16)} | {1, most})
    depths = [depth for depth in DEPTHS if depth <= recipe.buffer.max_staleness] or [recipe.buffer.max_staleness]
    found: list[tuple[str, ...]] = []
    for number in ranks:
        engines = (gpus - number * learner) // engine
        if engines >= 1 and number <= recipe.batch.groups_per_step:
            sizes = (f"learner.data_parallel={number}", f"generators.count={engines}")
            found += [(*sizes, f"buffer.pipeline_depth={depth}") for depth in depths]
    return found


def front(predictions: Sequence[Prediction]) -> list[int]:
    """Return the places of the predictions than which no other is both faster and fresher, the freshest first."""
    order = sorted(range(len(predictions)), key=lambda place: (_staleness(predictions[place]), -_speed(predictions[place])))
    chosen: list[int] = []
    best = 0.0
    for place in order:
        if _speed(predictions[place]) > best * (1 + SAME):
            chosen.append(place)
            best = _speed(predictions[place])
    return chosen


def verdict(predictions: Sequence[Prediction], synchronous: Prediction | None) -> str:
    """Say whether asynchronous training pays, and which of the predictions to take.

    Args:
        synchronous: the same resources with ``buffer.max_staleness`` 0; None where that is not known.
    """
    best = max(predictions, key=_speed)
    speed = f"{best.trajectories_per_s.mean:.3g} trajectories/s"
    said = f"fastest: {best.name}, {speed} at a staleness of {best.staleness_mean.mean:.2f}"
    if synchronous is None:
        return said
    gain = best.trajectories_per_s.mean / max(1e-12, synchronous.trajectories_per_s.mean)
    beside = f"{synchronous.trajectories_per_s.mean:.3g} trajectories/s, of which the fastest has {gain:.2f} times as many"
    overlaps = best.trajectories_per_s.low <= synchronous.trajectories_per_s.high
    if gain <= 1 + SAME or (overlaps and gain < 1 + CLEARLY):
        return f"synchronous is better: buffer.max_staleness=0 has no staleness, and {beside}"
    return f"{said}; synchronous training would be slower ({beside})"


def shown(overrides: Sequence[str]) -> str:
    """Return a short name of a point: its overrides without the sections of their keys."""
    return " ".join(each.rpartition(".")[2] if "." in each.partition("=")[0] else each for each in overrides) or "as it is"


def _speed(prediction: Prediction) -> float:
    return prediction.trajectories_per_s.mean


def _staleness(prediction: Prediction) -> float:
    return prediction.staleness_mean.mean
