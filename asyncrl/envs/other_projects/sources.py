"""The projects whose environments ``asyncrl env serve --from`` serves: by name, the class that plays them and what it needs."""

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from asyncrl.core.errors import RecipeError


class Source(msgspec.Struct, frozen=True):
    """A project.

    Attributes:
        environment: the class that plays its environments, as ``module:Class``.
        option: the option of its constructor that says which environment.
        module: what must be importable.
        package: what pip installs it as.
        prepare: a function of the environment's module that is called in the main thread before it is served; empty for none.
    """

    environment: str
    option: str
    module: str
    package: str
    prepare: str = ""

    def get_ready(self, options: Mapping[str, Any]) -> None:
        """Do in the main thread what has to be done there; raises ``RecipeError`` if there is no such environment."""
        if self.prepare:
            getattr(importlib.import_module(self.environment.partition(":")[0]), self.prepare)(**options)


SOURCES = {
    "gym": Source("asyncrl.envs.other_projects.gym:Gym", "name", "gymnasium", "gymnasium"),
    "openenv": Source("asyncrl.envs.other_projects.openenv:OpenEnv", "name", "openenv", "openenv-core"),
    "skyrl-gym": Source("asyncrl.envs.other_projects.skyrl_gym:SkyRLGym", "name", "skyrl_gym", "skyrl-gym", "prepare"),
    "textarena": Source("asyncrl.envs.other_projects.textarena:TextArena", "name", "textarena", "textarena"),
    "verifiers": Source("asyncrl.envs.other_projects.verifiers:Verifiers", "name", "verifiers", "verifiers", "prepare"),
}


def source_named(name: str) -> Source:
    """Return a project that can be served here.

    Raises:
        RecipeError: its package is not installed.
    """
    source = SOURCES[name]
    if importlib.util.find_spec(source.module) is None:
        raise RecipeError(
            "--from", f"module {source.module} is not installed here", f"{sys.executable} -m pip install {source.package}"
        )
    return source
