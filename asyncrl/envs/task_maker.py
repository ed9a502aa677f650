"""Finds the function of the user's that makes the tasks of an environment which has no class of its own."""

import inspect
from collections.abc import Callable, Sequence

from asyncrl.core.errors import RecipeError
from asyncrl.core.plug_ins.plug_in import import_module
from asyncrl.core.task import Task


def load_maker(name: str, place: str) -> Callable[[str, int, int], Sequence[Task]]:
    """Find the function that makes tasks.

    Raises:
        RecipeError: there is none.
    """
    module_name, _, attribute = name.partition(":")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise RecipeError(place, f"{name!r} does not name a function", "write it as `module:function`")
    module = import_module(module_name, place, "put it into the folder you launch from", "correct the module")
    found = getattr(module, attribute, None)
    if not inspect.isfunction(found):
        raise RecipeError(place, f"module {module_name} has no function {attribute!r}", f"define it in {module.__file__}")
    try:
        inspect.signature(found).bind("train", 1, 0)
    except TypeError as error:
        remedy = "give it the parameters split, count and seed"
        raise RecipeError(place, f"{name} cannot be called with split, count and seed: {error}", remedy) from error
    maker: Callable[[str, int, int], Sequence[Task]] = found
    return maker
