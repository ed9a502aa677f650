"""Finds the class that ``environment.name`` in a recipe means, and makes an instance of it for each episode.

Whatever is wrong with the name or the options is found here, before anything starts, and raised as a :class:`RecipeError`.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from types import ModuleType

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.plug_in import import_module, users_code
from asyncrl.core.recipe.environment import ClassEnvironment, EnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs.base import Environment
from asyncrl.envs.signature import Parameters
from asyncrl.envs.tools import ToolEnvironment

BUILT_IN = {"calculator": "asyncrl.envs.calculator:Calculator"}

_NAME, _OPTIONS = "environment.name", "environment.options"
_OWN = "or name your own as `module:Class`, importable from where the command is run"


def load_environment(spec: EnvironmentConfig) -> Callable[[], Environment]:
    """A function that makes the environment of one episode each time it is called.

    Raises:
        RecipeError: there is no such environment, or ``spec.options`` do not fit its constructor.
    """
    spec = _of_a_class(spec)
    return partial(_make, *_class_and_options(spec), spec.tool_timeout_s)


def make_tasks(spec: EnvironmentConfig, split: str, count: int, seed: int) -> Sequence[Task]:
    """The tasks that the recipe's environment makes itself; see :meth:`Environment.make_tasks`.

    Raises:
        RecipeError: there is no such environment, its options do not fit, it makes no tasks, or it raises while it makes them.
    """
    spec = _of_a_class(spec)
    environment, options = _class_and_options(spec)
    with users_code(f"make_tasks of {spec.name!r} raised", _NAME, "fix it, or set tasks.kind to `files` and name the files"):
        try:
            tasks = environment.make_tasks(split, count, seed, **options)
        except NotImplementedError as error:
            raise RecipeError(
                "tasks.kind", f"environment {spec.name!r} makes no tasks of its own", "use `files` and name the files"
            ) from error
        return list(tasks) if isinstance(tasks, Sequence) else tasks


def _of_a_class(spec: EnvironmentConfig) -> ClassEnvironment:
    if isinstance(spec, ClassEnvironment):
        return spec
    kind = type(spec).__struct_config__.tag
    raise RecipeError("environment.kind", f"environments of kind {kind} cannot be used yet", "use kind class")


def _class_and_options(spec: ClassEnvironment) -> tuple[type[Environment], dict[str, object]]:
    """The environment's class, and its options converted for the constructor. Resolving annotations runs the user's code, too."""
    problem = f"inspecting environment {spec.name!r} and its options failed with"
    with users_code(problem, _NAME, "fix the class and its constructor"):
        environment = environment_class(spec.name)
        return environment, _checked_options(spec, environment)


def environment_class(name: str) -> type[Environment]:
    """The class that ``name`` means: a built-in one, or ``module:Class``.

    Raises:
        RecipeError: there is no such environment, or it cannot be used; names the nearest choices.
    """
    module_name, separator, class_name = BUILT_IN.get(name, name).partition(":")
    if not separator:
        raise RecipeError(_NAME, f"there is no environment {name!r}", f"{_choices(name, list(BUILT_IN))}, {_OWN}")
    found = getattr(_import(module_name), class_name, None)
    if not (isinstance(found, type) and issubclass(found, Environment)):
        problem = "is not an Environment" if found else "does not exist"
        raise RecipeError(_NAME, f"class {class_name!r} of module {module_name} {problem}", _classes(module_name, class_name))
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise RecipeError(_NAME, f"{name} is an abstract class and cannot be used", f"define {missing} in class {class_name}")
    return found


def _import(module_name: str) -> ModuleType:
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise RecipeError(_NAME, f"{module_name!r} is not a module name", _OWN.removeprefix("or "))
    return import_module(module_name, _NAME, f"{_choices(module_name, list(BUILT_IN))}, {_OWN}", f"fix the module, {_OWN}")


def _classes(module_name: str, class_name: str) -> str:
    members = vars(sys.modules[module_name]).items()
    classes = [name for name, value in members if isinstance(value, type) and issubclass(value, Environment)]
    return _choices(class_name, sorted(set(classes) - {"Environment", "ToolEnvironment"}))


def _choices(wrong: str, choices: list[str]) -> str:
    nearest = get_close_matches(wrong, choices, n=1)
    if nearest:
        return f"did you mean `{nearest[0]}`?"
    return f"known are {', '.join(f'`{choice}`' for choice in choices)}" if choices else "none is defined there"


def _checked_options(spec: ClassEnvironment, environment: type[Environment]) -> dict[str, object]:
    constructor = environment.__init__
    if constructor is object.__init__:
        if spec.options:
            raise RecipeError(_OPTIONS, f"{spec.name} takes no options, got {sorted(spec.options)}", "leave them out")
        return {}
    try:
        parameters = Parameters(constructor, environment.__name__)
    except TypeError as error:
        raise RecipeError(_NAME, str(error), "type the constructor's parameters: options are checked by type") from error
    for option in spec.options:
        if option not in parameters.names:
            raise RecipeError(f"{_OPTIONS}.{option}", "there is no such option", _choices(option, list(parameters.names)))
    try:
        return parameters.convert(spec.options)
    except msgspec.ValidationError as error:
        raise RecipeError(_OPTIONS, f"{error}, got {spec.options}", f"use {parameters.usage}") from error


def _make(environment: type[Environment], options: dict[str, object], tool_timeout_s: float) -> Environment:
    instance = environment(**options)
    if isinstance(instance, ToolEnvironment):
        instance.tool_timeout_s = tool_timeout_s
    return instance
