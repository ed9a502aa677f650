"""Loads classes of the user's own, which a recipe names as ``module:Class``."""

import asyncio
import importlib
import os
import sys
from types import ModuleType

from asyncrl.core.errors import RecipeError
from asyncrl.core.text import told

RAISED = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
"""What the user's code may raise while the recipe is read: anything but the exception of Ctrl-C."""


def load_class(name: str, place: str) -> type:
    """Load the class that ``name`` means. Its module is looked for where Python looks, and last in the current folder.

    Args:
        name: ``module:Class``.
        place: key of the recipe to blame, e.g. ``buffer.sampler.name``.

    Raises:
        RecipeError: there is no such class, or its module cannot be imported.
    """
    module_name, _, class_name = name.partition(":")
    if not class_name.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise RecipeError(place, f"{name!r} does not name a class", "write it as `module:Class`")
    module = import_module(module_name, place, "put it into the folder you launch from", "mend the module")
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        problem = "is not a class" if found is not None else "does not exist"
        classes = sorted(
            key for key, value in vars(module).items() if isinstance(value, type) and value.__module__ == module_name
        )
        remedy = f"name one of {', '.join(classes)}" if classes else f"define it in {module.__file__}"
        raise RecipeError(place, f"{class_name!r} of module {module_name} {problem}", remedy)
    return found


def import_module(name: str, place: str, instead: str, mend: str) -> ModuleType:
    """Import a module of the user's own, from Python's path or the current folder.

    Args:
        name: dotted.
        place: key of the recipe to blame.
        instead: the remedy if there is no such module.
        mend: the remedy if it cannot be imported.

    Raises:
        RecipeError: there is no such module, or importing it failed.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last, so that a file that happens to lie here hides no library
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not f"{name}.".startswith(f"{missing}."):
            raise RecipeError(place, f"module {name} needs module {missing}, which is missing", "install it") from error
        raise RecipeError(place, f"there is no module {name!r} on the path or in {here}", instead) from error
    except RAISED as error:
        # The module is the user's, and so is whatever it raises while it is imported.
        problem = f"importing module {name!r} failed with {told(error)}"
        raise RecipeError(place, problem, mend) from error
