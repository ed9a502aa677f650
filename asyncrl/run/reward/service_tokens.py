"""The tokens of the services that judge episodes: read where a run is launched, and handed to its generators.

What always holds: they are :class:`Secrets`, so that they stand in no recipe, run folder or log.
"""

from collections.abc import Mapping

from asyncrl.core.recipe.reward import RemoteRewardConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.teacher import TeacherConfig
from asyncrl.envs.secrets import Secrets, read_token


def service_tokens(recipe: Recipe, variables: Mapping[str, str]) -> Secrets:
    """Take the tokens that the recipe's reward and teacher want from ``variables``, which are those of this process.

    Raises:
        RecipeError: a variable is not set, is empty, or holds no token.
    """
    found = dict[str, str]()
    for place, judge in (("reward", recipe.reward), ("algorithm.teacher", recipe.algorithm.teacher)):
        if isinstance(judge, RemoteRewardConfig | TeacherConfig) and judge.token_variable is not None:
            found[judge.token_variable] = read_token(judge.token_variable, f"{place}.token_variable", variables)
    return Secrets(found)


def token_of(service: RemoteRewardConfig | TeacherConfig, secrets: Secrets) -> str:
    """Return the token of a service; empty if it wants none."""
    return "" if service.token_variable is None else secrets[service.token_variable]
