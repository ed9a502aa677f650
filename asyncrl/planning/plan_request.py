"""What ``asyncrl plan`` is asked for, and its answer: the points of a plan, their predictions, and what follows from them."""

import re
from collections.abc import Callable, Sequence

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.planning.grid import front, points, read_axis, shown, splits, verdict
from asyncrl.planning.prediction import SEEDS, STEPS, Prediction, predict
from asyncrl.planning.rate_fit import Basis
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.recipe.compose import compose_for
from asyncrl.simulation.rates import Rate

SYNCHRONOUS = ("buffer.max_staleness=0", "buffer.pipeline_depth=0")
_NUMBER = re.compile(r"[\d,.]*\d")
_DEPENDENT = ("buffer.pipeline_depth=", "buffer.max_staleness=")


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to predict.

    Attributes:
        recipe: path or name of the recipe.
        overrides: its changes, in Hydra's grammar.
        vary: axes of a grid, as ``key=a:b`` or ``key=a,b,c``.
        gpus: a budget to be divided between learner and engines; None for the recipe's own sizes.
        seeds, steps: modelled runs of each point, and the training steps of each that count.
    """

    recipe: str
    overrides: tuple[str, ...] = ()
    vary: tuple[str, ...] = ()
    gpus: int | None = None
    seeds: int = SEEDS
    steps: int = STEPS


class Refused(msgspec.Struct, frozen=True):
    """A point that the recipe's rules refuse, and why."""

    name: str
    why: str


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was predicted.

    Attributes:
        recipe: the recipe's name.
        basis: what the rates come from, and the device that they are of.
        points: the predictions, in the order of the request.
        front: places of those than which no other is both faster and fresher.
        synchronous: the prediction of synchronous training with the resources of the fastest; None if it is refused.
        verdict: a sentence on what to choose.
        rates: each figure with its source.
        refused: points that could not be predicted.
    """

    recipe: str
    basis: str
    device: str
    points: tuple[Prediction, ...]
    front: tuple[int, ...]
    synchronous: Prediction | None
    verdict: str
    rates: dict[str, Rate]
    refused: tuple[Refused, ...] = ()

    @property
    def notes(self) -> list[str]:
        """The notes of all points; of those that differ in numbers alone, the first, and how many more there are."""
        alike: dict[str, dict[str, None]] = {}
        for point in self.points:
            for note in point.notes:
                alike.setdefault(_NUMBER.sub("#", note), {})[note] = None
        return [next(iter(notes)) + (f", and {len(notes) - 1} more such" if len(notes) > 1 else "") for notes in alike.values()]


def answer(
    request: PlanRequest, basis_of: Callable[[Recipe], Basis], machine: Machine, note: Callable[[str], None] = lambda text: None
) -> PlanAnswer:
    """Predict everything that was asked for.

    Args:
        basis_of: returns what to stand on, given the recipe as it is.
        note: is told of each point before it is modelled.

    Raises:
        RecipeError: the recipe, an axis or every point is refused.
    """
    if request.gpus is not None and request.vary:
        raise RecipeError("--gpus", "a budget is divided by itself, without --vary", "give one of both")
    recipe = compose_for(machine, request.recipe, request.overrides)[0]
    basis = basis_of(recipe)
    if request.gpus is not None and basis.device == "cpu":
        remedy = "give --rates FILE or a run on GPUs; on a CPU, compare sizes with --vary"
        raise RecipeError("--gpus", f"{basis.name} was measured on a CPU, which says nothing of GPUs", remedy)
    asked = splits(recipe, request.gpus) if request.gpus is not None else points([read_axis(each) for each in request.vary])
    predictions: list[Prediction] = []
    refused: list[Refused] = []
    for number, overrides in enumerate(asked, 1):
        if len(asked) > 1:
            note(f"{number} of {len(asked)}: {shown(overrides)}")
        try:
            predictions.append(_point(request, basis, machine, overrides))
        except RecipeError as error:
            if len(asked) == 1:
                raise
            refused.append(Refused(shown(overrides), str(error)))
    if not predictions:
        raise RecipeError(
            "--vary", f"every point is refused; the first: {refused[0].why}", "give values that the recipe may have"
        )
    fastest = max(predictions, key=lambda each: each.trajectories_per_s.mean)
    synchronous = _synchronous(request, basis, machine, fastest)
    known = [*predictions, *([] if synchronous is None else [synchronous])]
    return PlanAnswer(
        recipe=recipe.name,
        basis=basis.name,
        device=basis.device,
        points=tuple(predictions),
        front=tuple(place for place in front(known) if place < len(predictions)),
        synchronous=synchronous,
        verdict=verdict(predictions, synchronous),
        rates=dict(basis.rates_of(recipe).listed()),
        refused=tuple(refused),
    )


def _point(request: PlanRequest, basis: Basis, machine: Machine, overrides: Sequence[str]) -> Prediction:
    changed = compose_for(machine, request.recipe, (*request.overrides, *overrides))[0]
    return predict(changed, basis, name=shown(overrides), overrides=overrides, seeds=request.seeds, steps=request.steps)


def _synchronous(request: PlanRequest, basis: Basis, machine: Machine, like: Prediction) -> Prediction | None:
    """Predict synchronous training with the sizes of ``like``: the learner and the engines work in turn."""
    sizes = [each for each in like.overrides if not each.startswith(_DEPENDENT)]
    kept = [each for each in request.overrides if not each.startswith(_DEPENDENT)]
    asked = msgspec.structs.replace(request, overrides=tuple(kept))
    try:
        found = _point(asked, basis, machine, (*sizes, *SYNCHRONOUS))
    except RecipeError:
        return None
    return msgspec.structs.replace(found, name=" ".join(["synchronous", *(each.rpartition(".")[2] for each in sizes)]))
