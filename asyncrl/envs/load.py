"""Loads the environments of a recipe: one function that knows the kinds, and all about Python classes.

Whatever is wrong with the name or the options is found here, before anything starts, and raised as a :class:`RecipeError`.
"""

import inspect
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from copy import deepcopy
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.plug_ins.plug_in import import_module, name_of_module, users_code
from asyncrl.core.recipe.describe import quote_it
from asyncrl.core.recipe.environment import (
    AgentEnvironmentConfig,
    ClassEnvironmentConfig,
    EnvironmentConfig,
    McpEnvironmentConfig,
    MemberConfig,
    RemoteEnvironmentConfig,
    member_place,
)
from asyncrl.core.task import Task
from asyncrl.core.text import short
from asyncrl.envs.base import Environment
from asyncrl.envs.hosting.episode_resources import Provided
from asyncrl.envs.hosting.tool_messages import Load
from asyncrl.envs.member import Member
from asyncrl.envs.secrets import Secrets
from asyncrl.envs.signature import Parameters
from asyncrl.envs.tool_marks import refuse_late
from asyncrl.envs.tools import ToolEnvironment

BUILT_IN = {
    "calculator": "asyncrl.envs.builtin.calculator:Calculator",
    "python": "asyncrl.envs.builtin.python:Python",
    "reasoning_gym": "asyncrl.envs.builtin.reasoning_gym:ReasoningGym",
    "search": "asyncrl.envs.builtin.search:Search",
    "sql": "asyncrl.envs.builtin.sql:Sql",
    "terminal": "asyncrl.envs.builtin.terminal:Terminal",
}

_OWN = "or name your own as `module:Class`, importable from where the command is run"


def load_members(environment: EnvironmentConfig) -> dict[str, Member]:
    """Load and check each environment that plays episodes, by name.

    Raises:
        RecipeError: there is no such environment, or its options do not fit.
    """
    return {name: load_member(spec, member_place(name)) for name, spec in environment.by_member.items()}


def check_members(environment: EnvironmentConfig, variables: Mapping[str, str]) -> None:
    """Load each environment, and check what only a launch can see, such as whether servers answer.

    Raises:
        RecipeError: one of them cannot be used.
    """
    for member in load_members(environment).values():
        member.check(variables)


def load_member(spec: MemberConfig, place: str = "environment") -> Member:
    """Load and check one environment.

    Args:
        place: the recipe key of its section, for errors.

    Raises:
        RecipeError: there is no such environment, or its options do not fit.
    """
    match spec:
        case ClassEnvironmentConfig():
            return ClassMember(spec, place)
        case RemoteEnvironmentConfig():
            from asyncrl.envs.remote.member import RemoteMember

            return RemoteMember(spec, place)
        case McpEnvironmentConfig():
            from asyncrl.envs.mcp.member import McpMember

            return McpMember(spec, place)
        case AgentEnvironmentConfig():
            from asyncrl.envs.agent.member import AgentMember

            return AgentMember(spec, place)


def make_tasks(spec: MemberConfig, split: str, count: int, seed: int) -> Sequence[Task]:
    """Make tasks of one environment; see :meth:`Environment.make_tasks`. Raises ``RecipeError``."""
    return load_member(spec).make_tasks(split, count, seed)


class ClassMember(Member):
    """A Python class, and its options converted for the constructor. Resolving annotations runs the user's code, too.

    Attributes:
        name: the class as the recipe names it.
        environment: the class.

    Raises:
        RecipeError: there is no such class, its options do not fit its constructor, or a deadline of one of its tools is longer
            than an episode.
    """

    def __init__(self, spec: ClassEnvironmentConfig, place: str) -> None:
        super().__init__(spec, place)
        self.name, self._tool_timeout_s, self._given = spec.name, spec.tool_timeout_s, spec.options
        problem = f"inspecting environment {spec.name!r} and its options failed with"
        with users_code(problem, f"{place}.name", "fix the class and its constructor"):
            self.environment = environment_class(spec.name, f"{place}.name")
            if issubclass(self.environment, ToolEnvironment):
                refuse_late(self.environment, self.environment.tools, self.environment._asyncrl_tools)
            self._parameters = _fitting_parameters(spec, self.environment, place)
            self._share_takes_secrets = "secrets" in inspect.signature(self.environment.share).parameters
        for tool in getattr(self.environment, "tools", {}).values():
            timeout_s = tool.marks.timeout_s
            if timeout_s is not None and timeout_s > spec.episode_timeout_s:
                problem = f"tool {tool.name} has a timeout_s of {timeout_s:g} s, which is more than"
                limit = f"{place}.episode_timeout_s {spec.episode_timeout_s:g} s for the whole episode"
                raise RecipeError(f"{place}.name", f"{problem} {limit}", "lower the one or raise the other")

    @property
    def options(self) -> dict[str, Any]:
        """The constructor's arguments, defaults included. They are new each time: an episode may change its own."""
        return {} if self._parameters is None else self._parameters.convert(deepcopy(self._given))

    @property
    def process_class(self) -> Load | None:
        """The class, if it has tools that run in a process."""
        has_any = any(tool.marks.process for tool in getattr(self.environment, "tools", {}).values())
        return Load(self.environment.__module__, self.environment.__qualname__) if has_any else None

    def make(self, provided: Provided = Provided()) -> Environment:  # noqa: B008 - immutable
        """Make the environment of one episode."""
        options = self.options
        instance = self.environment.__new__(self.environment, **options)
        # Before the constructor, which may need what is provided; and past a __setattr__ of a frozen class.
        object.__setattr__(instance, "provided", provided)
        self.environment.__init__(instance, **options)
        if isinstance(instance, ToolEnvironment):
            instance.tool_timeout_s = self._tool_timeout_s
        return instance

    def share(self, secrets: Secrets) -> AbstractAsyncContextManager[Any]:
        """Return the context of the class's ``share``."""
        extra = {"secrets": secrets} if self._share_takes_secrets else {}
        self._check_options_of("share", tuple(extra))
        shared = self.environment.share(**self.options, **extra)
        if inspect.iscoroutine(shared):
            shared.close()
        if not isinstance(shared, AbstractAsyncContextManager):
            raise TypeError(f"share() returned {shared!r}; decorate it with @classmethod and @contextlib.asynccontextmanager")
        return shared

    def make_tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """Make tasks; see :meth:`Environment.make_tasks`."""
        self._check_options_of("make_tasks", ("split", "count", "seed"))
        raised = f"make_tasks of {self.name!r} raised"
        with users_code(raised, f"{self.place}.name", "fix it, or set tasks.kind to `files` and name the files"):
            try:
                tasks = self.environment.make_tasks(split, count, seed, **self.options)
            except NotImplementedError as error:
                problem = f"environment {self.name!r} makes no tasks of its own"
                raise RecipeError("tasks.kind", problem, "use `files` and name the files") from error
            return list(tasks) if isinstance(tasks, Sequence) else tasks

    def _check_options_of(self, method: str, own: tuple[str, ...]) -> None:
        """Refuse a class with an option that is called like an argument which ``method`` gets from the run."""
        for option in self.options:
            if option in own:
                problem = f"{method} of {self.name!r} gets its own {option!r}, and each option too, one of which is {option!r}"
                raise RecipeError(f"{self.place}.name", problem, "call that parameter of the constructor something else")


def environment_class(name: str, place: str = "environment.name") -> type[Environment]:
    """The class that ``name`` means: a built-in one, or ``module:Class``.

    Args:
        place: the recipe key of the name, for errors.

    Raises:
        RecipeError: there is no such environment, or it cannot be used; names the nearest choices.
    """
    module_name, separator, class_name = BUILT_IN.get(name, name).partition(":")
    if not separator:
        raise RecipeError(place, f"there is no environment {name!r}", f"{_choices(name, list(BUILT_IN))}, {_OWN}")
    found = getattr(_import(module_name, place), class_name, None)
    if not (isinstance(found, type) and issubclass(found, Environment)):
        problem = "is not an Environment" if found else "does not exist"
        raise RecipeError(place, f"class {class_name!r} of module {module_name} {problem}", _classes(module_name, class_name))
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise RecipeError(place, f"{name} is an abstract class and cannot be used", f"define {missing} in class {class_name}")
    return found


def _import(module_name: str, place: str) -> ModuleType:
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise RecipeError(place, f"{module_name!r} is not a module name", name_of_module(module_name) or _OWN.removeprefix("or "))
    return import_module(module_name, place, f"{_choices(module_name, list(BUILT_IN))}, {_OWN}", "correct it")


def _classes(module_name: str, class_name: str) -> str:
    members = vars(sys.modules[module_name]).items()
    classes = [name for name, value in members if isinstance(value, type) and issubclass(value, Environment)]
    return _choices(class_name, sorted(set(classes) - {"Environment", "ToolEnvironment"}))


def _choices(wrong: str, choices: list[str]) -> str:
    nearest = get_close_matches(wrong, choices, n=1)
    if nearest:
        return f"did you mean `{nearest[0]}`?"
    return f"known are {', '.join(f'`{choice}`' for choice in choices)}" if choices else "none is defined there"


def _fitting_parameters(spec: ClassEnvironmentConfig, environment: type[Environment], place: str) -> Parameters | None:
    """Return the parameters of the constructor, which the recipe's options fit; None if there is none."""
    constructor = environment.__init__
    if constructor is object.__init__:
        if spec.options:
            raise RecipeError(f"{place}.options", f"{spec.name} takes no options, got {sorted(spec.options)}", "leave them out")
        return None
    try:
        parameters = Parameters(constructor, environment.__name__)
    except TypeError as error:
        raise RecipeError(
            f"{place}.name", str(error), "type the constructor's parameters: options are checked by type"
        ) from error
    for option in spec.options:
        if option not in parameters.names:
            raise RecipeError(f"{place}.options.{option}", "there is no such option", _choices(option, list(parameters.names)))
    try:
        parameters.convert(spec.options)
    except msgspec.ValidationError as error:
        raise _unfit(error, spec.options, f"{place}.options", parameters.usage) from error
    return parameters


def _unfit(error: msgspec.ValidationError, options: Mapping[str, object], place: str, usage: str) -> RecipeError:
    """Return the refusal of options that do not fit, at the key of the one that does not, with its value."""
    problem, _, at = str(error).partition(" - at `$")
    value: object = options
    for key in filter(None, at.rstrip("`").split(".")):
        if not isinstance(value, Mapping) or key not in value:  # within a list
            return RecipeError(place, f"{error}, got {short(options)}", f"use {usage}")
        place, value = f"{place}.{key}", value[key]
    is_text = isinstance(value, bool | int | float) and "Expected `str" in problem
    remedy = f"{quote_it(place)} (use {usage})" if is_text else f"use {usage}"
    return RecipeError(place, f"{short(value)} does not fit: {problem[0].lower()}{problem[1:]}", remedy)
