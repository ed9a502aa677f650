"""Rules between the environment and the tasks: each task is played by a member that there is, and each member has tasks."""

import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.environment import AgentEnvironmentConfig, MixedEnvironmentConfig, member_place
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.tasks import FileTasksConfig, GeneratedTasksConfig

Rule = Callable[[Recipe], Iterator[RecipeError]]


def _weights_are_of_members(recipe: Recipe) -> Iterator[RecipeError]:
    if not isinstance(recipe.tasks, GeneratedTasksConfig):
        return
    if not isinstance(recipe.environment, MixedEnvironmentConfig):
        if recipe.tasks.weights:
            yield RecipeError("tasks.weights", "there is one environment, which makes all tasks", _MIX)
        if recipe.tasks.curriculum is not None:
            yield RecipeError("tasks.curriculum", "there is one environment, so there are no weights to change", _MIX)
        return
    for name in recipe.tasks.weights:
        if name not in recipe.environment.members:
            yield RecipeError(f"tasks.weights.{name}", "environment.members has none of that name", _near(name, recipe))


def _a_curriculum_has_sources_to_choose_from(recipe: Recipe) -> Iterator[RecipeError]:
    tasks, members = recipe.tasks, recipe.environment.by_member
    if tasks.curriculum is None or (
        isinstance(tasks, GeneratedTasksConfig) and not isinstance(recipe.environment, MixedEnvironmentConfig)
    ):
        return
    sources, what = (len(tasks.train), "file in tasks.train") if isinstance(tasks, FileTasksConfig) else (len(members), "member")
    if sources == 1:
        problem = f"there is one {what}, so there are no weights to change"
        yield RecipeError("tasks.curriculum", problem, "leave it out, or name a second source of tasks")


def _each_file_names_its_member(recipe: Recipe) -> Iterator[RecipeError]:
    if not isinstance(recipe.tasks, FileTasksConfig):
        return
    members: Mapping[str, object] = recipe.environment.by_member
    for split, files in (("train", recipe.tasks.train), ("evaluation", recipe.tasks.evaluation)):
        for index, file in enumerate(files):
            place = f"tasks.{split}[{index}].environment"
            if isinstance(recipe.environment, MixedEnvironmentConfig):
                if file.environment not in members:
                    problem = (
                        f"environment.members has no {file.environment!r}"
                        if file.environment
                        else f"nothing says which of environment.members plays the tasks of {file.path}"
                    )
                    yield RecipeError(place, problem, _near(file.environment, recipe))
            elif file.environment:
                yield RecipeError(place, f"{file.environment!r}, but there is one environment, without a name", _MIX)


def _each_member_is_trained(recipe: Recipe) -> Iterator[RecipeError]:
    if isinstance(recipe.tasks, FileTasksConfig) and isinstance(recipe.environment, MixedEnvironmentConfig):
        trained = {file.environment for file in recipe.tasks.train}
        for name in recipe.environment.members:
            if name not in trained:
                remedy = f"add one with `environment: {name}`, or take the member out"
                yield RecipeError(member_place(name), "no file of tasks.train is for this member", remedy)


def _only_roles_that_there_are_are_trained(recipe: Recipe) -> Iterator[RecipeError]:
    for name, member in recipe.environment.by_member.items():
        if member.train != "all" and not isinstance(member, AgentEnvironmentConfig):
            problem = "it names roles, but the episodes of this kind of environment have one trajectory, and no role"
            yield RecipeError(f"{member_place(name)}.train", problem, "leave it out")


def _an_agent_is_a_command_or_a_function(recipe: Recipe) -> Iterator[RecipeError]:
    for name, member in recipe.environment.by_member.items():
        if not isinstance(member, AgentEnvironmentConfig):
            continue
        place = member_place(name)
        if bool(member.command) == bool(member.function):
            problem = (
                "an agent is a command or a function, and it has both" if member.command else "nothing says what the agent is"
            )
            yield RecipeError(f"{place}.command", problem, f"set either {place}.command or {place}.function")
        elif member.function and not _FUNCTION.fullmatch(member.function):
            problem = f"{member.function!r} does not name a function"
            yield RecipeError(f"{place}.function", problem, "write it as `module:function`")
        elif member.sandbox and member.function:
            problem = "the episodes of a function are forks of one process, which no sandbox confines"
            yield RecipeError(f"{place}.sandbox", problem, f"start the agent by {place}.command")
        elif member.sandbox and member.gateway != "loopback":
            problem = "programs in the sandbox reach this host's loopback alone, and the gateway would be elsewhere"
            yield RecipeError(
                f"{place}.sandbox", problem, f"take out {place}.gateway, or the sandbox if a container confines the agent"
            )


def _near(name: str, recipe: Recipe) -> str:
    members = list(recipe.environment.by_member)
    near = get_close_matches(name, members, n=1)
    return f"did you mean `{near[0]}`?" if near else f"name one of {', '.join(members)}"


_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_MIX = "leave it out, or set environment.kind to `mixed` and name environment.members"

ENVIRONMENT_RULES: tuple[Rule, ...] = (
    _weights_are_of_members,
    _a_curriculum_has_sources_to_choose_from,
    _each_file_names_its_member,
    _each_member_is_trained,
    _only_roles_that_there_are_are_trained,
    _an_agent_is_a_command_or_a_function,
)
