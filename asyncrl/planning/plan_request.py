"""What ``asyncrl plan`` is asked for, and its answer: the points of a plan, their predictions, and what follows from them."""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.text import pluralize
from asyncrl.planning.episode_limits import limited
from asyncrl.planning.grid import axes_to_vary, fastest, front, points, shown, speed_of, splits, verdict
from asyncrl.planning.prediction import SEEDS, STEPS, Prediction, gpus_taken, predict
from asyncrl.planning.rate_fit import Basis
from asyncrl.planning.remarks import gathered
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.recipe.automatic import Choice
from asyncrl.run.recipe.compose import compose_for
from asyncrl.simulation.rates import Rate

SYNCHRONOUS = ("buffer.max_staleness=0", "buffer.pipeline_depth=0")
_DEPENDENT = ("buffer.pipeline_depth=", "buffer.max_staleness=")
_COUNT = "generators.count"


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
        synchronous: the prediction of synchronous training with the sizes of the fastest, or in the best split of a budget; None
            if it is refused.
        verdict: a sentence on what to choose.
        rates: each figure with its source, as it is for the fastest.
        refused: points that could not be predicted.
        remarks: what was chosen, or left out, for all points.
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
    remarks: tuple[str, ...] = ()

    @property
    def every(self) -> tuple[Prediction, ...]:
        """All predictions, the synchronous one last."""
        return (*self.points, *(() if self.synchronous is None else (self.synchronous,)))

    @property
    def best(self) -> Prediction:
        """The fastest of the points."""
        return fastest(self.points)

    @property
    def notes(self) -> list[str]:
        """The remarks, and the notes of the points: of those that differ in numbers alone, the first with its point."""
        notes = ((point.name, note) for point in self.points for note in point.notes)
        return [*self.remarks, *gathered(notes, len(self.points), "point")]


class _Point(msgspec.Struct, frozen=True):
    overrides: tuple[str, ...]
    recipe: Recipe

    @property
    def name(self) -> str:
        return shown(self.overrides)


def answer(
    request: PlanRequest, basis_of: Callable[[Recipe], Basis], machine: Machine, note: Callable[[str], None] = lambda text: None
) -> PlanAnswer:
    """Predict everything that was asked for.

    Args:
        basis_of: returns what to stand on, given the recipe as it is; called once all points are known.
        note: is told of each point before it is modelled, which may take long.

    Raises:
        RecipeError: the recipe, an axis or every point is refused.
        AsyncRLError: the only point cannot be modelled.
    """
    if request.gpus is not None and request.vary:
        raise RecipeError("--gpus", "a budget is divided by itself, without --vary", "give one of both")
    recipe, choices = compose_for(machine, request.recipe, request.overrides)
    remarks = list(_remarks(request, recipe, choices))
    if recipe.tune is not None:
        request = msgspec.structs.replace(request, overrides=(*request.overrides, "tune=null"))
    asked = splits(recipe, request.gpus) if request.gpus is not None else points(axes_to_vary(request.recipe, request.vary))
    refused: list[Refused] = []
    composed = list(_composed(request, machine, asked, refused))
    _check_any(request, composed, refused)
    basis = basis_of(recipe)
    if request.gpus is not None and basis.device == "cpu":
        remedy = "give --rates FILE or a run on GPUs; on a CPU, compare sizes with --vary"
        raise RecipeError("--gpus", f"{basis.name} was measured on a CPU, which says nothing of GPUs", remedy)
    predictions: list[Prediction] = []
    for number, point in enumerate(composed, 1):
        note(f"{number} of {len(composed)}: {point.name}")
        try:
            predictions.append(_predicted(request, basis, point))
        except AsyncRLError as error:
            if len(asked) == 1:
                raise
            refused.append(Refused(point.name, str(error)))
    _check_any(request, predictions, refused)
    best = fastest(predictions)
    synchronous, why = _synchronous(request, basis, machine, best, asked, note)
    known = [*predictions, *([] if synchronous is None else [synchronous])]
    of_best = next(point.recipe for point in composed if point.overrides == best.overrides)
    return PlanAnswer(
        recipe=recipe.name,
        basis=basis.name,
        device=basis.device,
        points=tuple(predictions),
        front=tuple(place for place in front(known) if place < len(predictions)),
        synchronous=synchronous,
        verdict=verdict(predictions, synchronous),
        rates=dict(limited(basis, of_best).rates_of(of_best).listed()),
        refused=tuple(refused),
        remarks=(*remarks, *([f"synchronous training could not be foreseen: {why}"] if why else [])),
    )


def _remarks(request: PlanRequest, recipe: Recipe, choices: Sequence[Choice]) -> Iterator[str]:
    if recipe.tune is not None:
        yield "section tune was left out: sizes were foreseen as a run begins with them"
    count = next((choice for choice in choices if choice.key == _COUNT), None)
    if count is not None and request.gpus is None and not any(each.startswith(f"{_COUNT}=") for each in request.vary):
        yield f"{_COUNT} is auto, and {count.value} as the recipe is ({count.reason}): set it, vary it, or give --gpus"


def _check_any(request: PlanRequest, found: Sequence[object], refused: Sequence[Refused]) -> None:
    """Refuse a plan of which every point is refused."""
    if found:
        return
    place, remedy = (
        ("--vary", "give values that the recipe may have") if request.gpus is None else ("--gpus", "give another number")
    )
    raise RecipeError(place, f"every point is refused; the first, {refused[0].name}: {refused[0].why}", remedy)


def _composed(
    request: PlanRequest, machine: Machine, asked: Sequence[tuple[str, ...]], refused: list[Refused]
) -> Iterator[_Point]:
    """Yield the points that the recipe's rules allow, and add the others to ``refused``."""
    for overrides in asked:
        try:
            recipe, choices = compose_for(machine, request.recipe, (*request.overrides, *overrides))
            _check_room(recipe, choices, machine)
            yield _Point(overrides, recipe)
        except RecipeError as error:
            if len(asked) == 1:
                raise
            refused.append(Refused(shown(overrides), str(error)))


def _check_room(recipe: Recipe, choices: Sequence[Choice], machine: Machine) -> None:
    """Refuse a recipe that leaves the number of engines to a machine on which its learner leaves no GPU for one."""
    is_chosen = any(choice.key == _COUNT for choice in choices) and not recipe.generators.pools
    if is_chosen and machine.gpus and gpus_taken(recipe) > machine.gpus:
        learner = pluralize(recipe.learner.layout.ranks, "rank")
        problem = f"is auto, and a learner of {learner} leaves too few of {machine.gpus} GPUs for an engine"
        raise RecipeError(_COUNT, problem, "set it, vary it, or give --gpus")


def _predicted(request: PlanRequest, basis: Basis, point: _Point) -> Prediction:
    return predict(point.recipe, basis, name=point.name, overrides=point.overrides, seeds=request.seeds, steps=request.steps)


def _synchronous(
    request: PlanRequest,
    basis: Basis,
    machine: Machine,
    like: Prediction,
    asked: Sequence[tuple[str, ...]],
    note: Callable[[str], None],
) -> tuple[Prediction | None, str]:
    """Predict synchronous training, where the learner and the engines work in turn: with the sizes of ``like``, or in the best
    split of a budget; None, and why, if it is refused."""
    sizes = dict.fromkeys(_independent(each) for each in (asked if request.gpus is not None else [like.overrides]))
    synchronous = msgspec.structs.replace(request, overrides=(*_independent(request.overrides), *SYNCHRONOUS))
    found: list[Prediction] = []
    why = ""
    for own in sizes:
        note(f"synchronous training: {shown(own)}")
        try:
            recipe = compose_for(machine, request.recipe, (*synchronous.overrides, *own))[0]
            found.append(_predicted(synchronous, basis, _Point(own, recipe)))
        except AsyncRLError as error:
            why = why or str(error)
    if not found:
        return None, why
    best = max(found, key=speed_of)
    name = " ".join(["synchronous", *([shown(best.overrides)] if best.overrides else [])])
    return msgspec.structs.replace(best, name=name, overrides=(*best.overrides, *SYNCHRONOUS)), ""


def _independent(overrides: Sequence[str]) -> tuple[str, ...]:
    return tuple(each for each in overrides if not each.startswith(_DEPENDENT))
