"""Finds the function of the user's that makes the tasks of an environment which has no class of its own."""

import inspect
from collections.abc import Callable, Sequence

from asyncrl.core.errors import RecipeError
from asyncrl.core.plug_ins.plug_in import users_code
from asyncrl.core.plug_ins.plug_in_function import find_function
from asyncrl.core.task import Task


def load_maker(name: str, place: str) -> Callable[[str, int, int], Sequence[Task]]:
    """Find the function that makes tasks; what it raises is raised as a ``RecipeError``.

    Raises:
        RecipeError: there is none, or it does not take split, count and seed.
    """
    found = find_function(name, place)
    try:
        inspect.signature(found).bind("train", 1, 0)
    except TypeError as error:
        remedy = "give it the parameters split, count and seed"
        raise RecipeError(place, f"{name} cannot be called with split, count and seed: {error}", remedy) from error

    def make(split: str, count: int, seed: int) -> Sequence[Task]:
        with users_code(f"{name} raised", place, "correct it"):
            tasks: Sequence[Task] = found(split, count, seed)
            return list(tasks) if isinstance(tasks, Sequence) else tasks

    return make
