"""Decides what the tiny model is warmed up on: the lessons of the recipe's environments.

Environments of the user's own need no lessons. If none has any, the model is made for the calculator, which teaches it to call a
tool and little else.
"""

import random

from asyncrl.core.errors import RecipeError
from asyncrl.core.plug_ins.plug_in import users_code
from asyncrl.core.recipe.environment import ClassEnvironmentConfig, MemberConfig, member_place
from asyncrl.core.recipe.schema import Recipe
from asyncrl.envs.lessons import Lessons
from asyncrl.envs.lessons.find_lessons import find_lessons
from asyncrl.envs.load import BUILT_IN, make_tasks
from asyncrl.generators.episode import EpisodeLimits
from asyncrl.learners.tiny.settings import WarmUp
from asyncrl.run.models.model_shape import TINY, TINY_SHAPE
from asyncrl.run.tiny.player import Player

CALCULATOR = ClassEnvironmentConfig(name="calculator")
_TURN_TOKENS = 64
"""Tokens that a turn of every lesson has room for. A model that never ends its turns takes long to try with more."""


def players_of(recipe: Recipe) -> dict[str, Player]:
    """Return the environments that the recipe's tiny model is made for, by member, with limits of the episodes that try it.

    Raises:
        RecipeError: an environment is wrong, or a built-in one has no lessons for its options.
    """
    if players := _taught(recipe):
        return players
    return {"": Player(CALCULATOR, _roomy(recipe, next(iter(recipe.environment.by_member))))}


def _roomy(recipe: Recipe, member: str) -> EpisodeLimits:
    """Return limits within which every lesson can be played. A run may have tighter ones, in which less is solved."""
    return EpisodeLimits.of(recipe, member).widened(
        max_turns=CALCULATOR.max_turns, max_turn_tokens=_TURN_TOKENS, max_context=TINY_SHAPE.max_position_embeddings
    )


def remarks_on(recipe: Recipe) -> tuple[str, ...]:
    """Return a remark for the user if the recipe's model is the tiny one, and an environment has no lessons for it.

    Raises:
        RecipeError: as :func:`players_of`, or an environment with lessons makes no tasks to teach on.
    """
    if recipe.model.path != TINY:
        return ()
    taught = _taught(recipe)
    for member, player in taught.items():
        check_lessons(player.environment, member_place(member), recipe.seed)
    others = untaught(recipe)
    remarks = []
    if elsewhere := " and ".join(spec.label for spec in others if not isinstance(spec, ClassEnvironmentConfig)):
        unless = f"unless {elsewhere} has tools like the calculator's"
        remarks.append(f"model.path: {TINY} has been warmed up on the calculator; {unless}, it will hardly get anywhere there")
    unknown = [spec.label for spec in others if isinstance(spec, ClassEnvironmentConfig)]
    if not unknown:
        return tuple(remarks)
    problem = f"{TINY} has not been warmed up on {' and '.join(unknown)}, and will hardly get anywhere there"
    remedy = "name a better model, or give the environment lessons (docs/reference/built-in-environments.md)"
    return (*remarks, f"model.path: {problem}; {remedy}")


def untaught(recipe: Recipe) -> list[MemberConfig]:
    """Return the environments that the recipe's model has no lessons for, if it is the tiny one.

    Raises:
        RecipeError: as :func:`players_of`.
    """
    if recipe.model.path != TINY:
        return []
    taught = _taught(recipe)
    return [spec for member, spec in recipe.environment.by_member.items() if member not in taught]


def check_lessons(environment: MemberConfig, place: str, seed: int) -> None:
    """Make a task of each split as the warm-up will, also where the tasks of the run come from files, and script some.

    Raises:
        RecipeError: the environment has lessons, and makes no tasks with these options; or its lessons raise something, or
            tempt at each task that the warmed-up model would be measured on.
    """
    lessons = find_lessons(environment)
    if lessons is None:
        return
    for split in ("train", "evaluation"):
        try:
            made = make_tasks(environment, split, 1, seed)
        except RecipeError as error:
            problem = (
                f"its lessons teach the tiny model on tasks of make_tasks, also where those of the run are files: {error.problem}"
            )
            remedy = (
                "let make_tasks take the environment's options, or have the function under @lessons_for return None for these"
            )
            raise RecipeError(place, problem, remedy) from error
        if not made:
            problem = f"its lessons need tasks, and make_tasks makes none of split {split}"
            raise RecipeError(place, problem, "make some, or have the function under @lessons_for return None")
    if isinstance(environment, ClassEnvironmentConfig) and environment.name not in BUILT_IN:
        _check_scripts(environment, lessons, place, seed)


def _check_scripts(environment: ClassEnvironmentConfig, lessons: Lessons, place: str, seed: int) -> None:
    """Let the lessons of the user's own environment script the tasks that the warmed-up model will be measured on."""
    held_out = make_tasks(environment, "evaluation", WarmUp().held_out_tasks, seed)
    with users_code(f"the lessons of {environment.name!r} raised", place, "correct them"):
        lessons.mistaken(held_out[0])
        tempting = [lessons.habitual(task, 1.0, random.Random(0)) != lessons.ideal(task) for task in held_out]
    if all(tempting):
        problem = (
            f"habitual() of its lessons gives in to the bad habit at all {len(held_out)} held-out tasks that make_tasks makes"
        )
        remedy = (
            "let it return the ideal script for some tasks, such as the easiest, whatever `share` is: by these it is measured "
            "whether the model has learned to play at all"
        )
        raise RecipeError(place, problem, remedy)


def _taught(recipe: Recipe) -> dict[str, Player]:
    """Return the members with lessons."""
    players = {}
    for member, spec in recipe.environment.by_member.items():
        if not isinstance(spec, ClassEnvironmentConfig):
            continue
        if find_lessons(spec) is not None:
            players[member] = Player(spec, _roomy(recipe, member))
        elif spec.name in BUILT_IN:
            problem = f"{TINY} cannot be warmed up on {member_place(member)} ({spec.name}): with these options it has no lessons"
            raise RecipeError("model.path", problem, "name a Hugging Face folder, or a model of the hub as organisation/name")
    return players
