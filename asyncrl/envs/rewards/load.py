"""Finds the reward that a recipe names: a built-in one, a function of the user's own, or a :class:`Reward` that the user made."""

import inspect
from collections.abc import Awaitable, Callable, Mapping

from asyncrl.core.errors import RecipeError
from asyncrl.core.plug_ins.plug_in import import_module, users_code
from asyncrl.core.task import Task
from asyncrl.envs.rewards.base import Reward
from asyncrl.envs.rewards.exact import Exact
from asyncrl.envs.rewards.math_reward import MathEquivalence

RewardFunction = Callable[[Task, str], float | Mapping[str, float] | Awaitable[float | Mapping[str, float]]]

BUILT_IN_REWARDS: Mapping[str, type[Reward]] = {"exact": Exact, "math": MathEquivalence}
"""Rewards that need no options: they compare the answer with ``task.data["answer"]``."""


def load_reward(name: str, place: str) -> RewardFunction:
    """Find a reward by its name.

    Args:
        name: a built-in reward, or ``module:name`` of a plain or async function of a task and an answer, or of a :class:`Reward`.
        place: key of the recipe to blame, e.g. ``environment.reward``.

    Raises:
        RecipeError: there is no such reward, or it cannot be called with a task and an answer.
    """
    if name in BUILT_IN_REWARDS:
        return BUILT_IN_REWARDS[name]()
    module_name, separator, attribute = name.partition(":")
    own = "write `module:function`, importable from where the command is run"
    if not separator or not attribute.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise RecipeError(place, f"there is no reward {name!r}", f"use one of {', '.join(sorted(BUILT_IN_REWARDS))}, or {own}")
    module = import_module(module_name, place, own, "correct the module")
    found = getattr(module, attribute, None)
    if found is None:
        raise RecipeError(place, f"module {module_name} has no {attribute!r}", f"define it in {module.__file__}")
    if isinstance(found, type) and issubclass(found, Reward):
        raise RecipeError(
            place, f"{name} is a class", f"make an instance in its module, e.g. `judge = {attribute}(...)`, and name it"
        )
    if not callable(found):
        raise RecipeError(
            place, f"{name} is of type {type(found).__name__}", "name a function of a task and an answer, or a Reward"
        )
    with users_code(f"looking at {name} failed with", place, "correct it"):
        try:
            inspect.signature(found).bind(None, "")
        except TypeError as error:
            raise RecipeError(
                place, f"{name} cannot be called with a task and an answer: {error}", "give it two parameters"
            ) from error
    function: RewardFunction = found
    return function
