"""Rules of ``tune``: keys that cannot be turned in a run that goes on, and bounds within which nothing could be."""

from collections.abc import Callable, Iterator

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.knobs import knob_of, pool_of, value_of
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.trajectories import NoTrajectoriesConfig
from asyncrl.core.recipe.tune import DEPTH, RUNNING

_MATHEMATICS = ("batch", "algorithm", "sampling", "reward", "environment", "tasks", "model", "evaluation")
_COMPARE = "compare values of it with `asyncrl plan` and `asyncrl sweep`, and set the best in the recipe"


def _place(knob: str) -> str:
    return f"tune.knobs[{knob}]"


def _knobs(recipe: Recipe) -> list[str]:
    return [*map(knob_of, recipe.generators.by_pool), DEPTH, RUNNING]


def _a_knob_can_be_turned(recipe: Recipe) -> Iterator[RecipeError]:
    if recipe.tune is None:
        return
    if not recipe.tune.knobs:
        yield RecipeError("tune.knobs", "names nothing that may be turned", f"name some of {', '.join(_knobs(recipe))}")
    for knob in recipe.tune.knobs:
        if knob in _knobs(recipe):
            continue
        section = knob.partition(".")[0]
        if (pool := pool_of(knob)) is not None:
            problem = f"there is no pool {pool} in generators.pools"
            yield RecipeError(_place(knob), problem, f"add it there, or name some of {', '.join(_knobs(recipe))}")
        elif knob == "buffer.max_staleness":
            problem = "is the bound, which holds for the whole run and is never turned"
            yield RecipeError(_place(knob), problem, f"turn {DEPTH} within it, and limit tune.limits.staleness_mean")
        elif section in _MATHEMATICS or knob.startswith(("buffer.", "learner.lr", "learner.schedule")):
            problem = f"{knob} changes what is trained, and so the result of the run: tune turns sizes only"
            yield RecipeError(_place(knob), problem, f"leave it out; {_COMPARE}")
        elif section in ("learner", "generators", "weights", "checkpoint", "network"):
            problem = f"{knob} cannot be changed in a run that goes on"
            yield RecipeError(_place(knob), problem, f"name some of {', '.join(_knobs(recipe))}; {_COMPARE}")
        else:
            yield RecipeError(_place(knob), f"there is no knob {knob}", f"name some of {', '.join(_knobs(recipe))}")


def _bounds_hold_the_present_value(recipe: Recipe) -> Iterator[RecipeError]:
    if recipe.tune is None:
        return
    for knob, (least, most) in recipe.tune.knobs.items():
        if knob not in _knobs(recipe):
            continue
        present = value_of(recipe, knob)
        if least >= most:
            problem = f"[{least}, {most}] leaves nothing to choose"
            yield RecipeError(_place(knob), problem, "give the least and the most, such as [1, 4], or leave the knob out")
        elif not least <= present <= most:
            problem = f"[{least}, {most}] excludes {present}, with which the run begins"
            yield RecipeError(_place(knob), problem, f"widen the bounds, or set {knob} between them")


def _depth_stays_within_the_bound(recipe: Recipe) -> Iterator[RecipeError]:
    bounds = None if recipe.tune is None else recipe.tune.knobs.get(DEPTH)
    if bounds is not None and bounds[1] > recipe.buffer.max_staleness:
        problem = (
            f"with {bounds[1]} training steps ahead, tokens could be over buffer.max_staleness {recipe.buffer.max_staleness}"
        )
        remedy = f"set its most to at most {recipe.buffer.max_staleness}, or raise buffer.max_staleness"
        yield RecipeError(_place(DEPTH), problem, remedy)


def _engines_can_hold_a_group(recipe: Recipe) -> Iterator[RecipeError]:
    bounds = None if recipe.tune is None else recipe.tune.knobs.get(RUNNING)
    if bounds is not None and bounds[0] < recipe.batch.group_size:
        problem = f"{bounds[0]} episodes at once are less than a group of batch.group_size {recipe.batch.group_size}"
        yield RecipeError(_place(RUNNING), problem, f"set its least to at least {recipe.batch.group_size}")


def _the_plan_has_episodes(recipe: Recipe) -> Iterator[RecipeError]:
    if recipe.tune is not None and isinstance(recipe.tracking.trajectories, NoTrajectoriesConfig):
        problem = "keeps no episodes, and tune asks a plan that draws from kept ones which knob to turn"
        yield RecipeError("tracking.trajectories.keep", problem, "set it to sample or all, or leave tune out")


def _engines_that_train_are_counted(recipe: Recipe) -> Iterator[RecipeError]:
    for knob in () if recipe.tune is None else recipe.tune.knobs:
        pool = pool_of(knob)
        if pool in recipe.generators.by_pool and pool not in recipe.generators.training:
            problem = f"pool {pool} only evaluates, which trains no token"
            yield RecipeError(_place(knob), problem, "leave it out")


TUNE_RULES: tuple[Callable[[Recipe], Iterator[RecipeError]], ...] = (
    _a_knob_can_be_turned,
    _bounds_hold_the_present_value,
    _depth_stays_within_the_bound,
    _engines_can_hold_a_group,
    _the_plan_has_episodes,
    _engines_that_train_are_counted,
)
