"""An environment of kind ``agent``, loaded and checked."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.environment import AgentEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs.agent.environment import AgentEnvironment, interpreter, lasting_variables
from asyncrl.envs.agent.function_host import FunctionHost, function_host
from asyncrl.envs.agent.host import NO_MODEL_YET
from asyncrl.envs.agent.sandboxed_command import agents_sandbox, check_readable
from asyncrl.envs.base import Environment
from asyncrl.envs.hosting.episode_resources import Provided
from asyncrl.envs.member import Member
from asyncrl.envs.rewards.load import load_reward
from asyncrl.envs.secrets import Secrets
from asyncrl.envs.task_maker import load_maker


class AgentMember(Member):
    """An agent that plays episodes: a command, or a function whose host all episodes of a worker share.

    Raises:
        RecipeError: there is no such reward or maker of tasks.
    """

    def __init__(self, spec: AgentEnvironmentConfig, place: str) -> None:
        super().__init__(spec, place)
        self._spec = spec
        self._reward = load_reward(spec.reward, f"{place}.reward") if spec.reward else None
        self._make_tasks = load_maker(spec.tasks, f"{place}.tasks") if spec.tasks else None

    def make(self, provided: Provided = Provided()) -> Environment:  # noqa: B008 - immutable
        """Make the environment of one episode."""
        environment = AgentEnvironment(self._spec, self._reward)
        environment.provided = provided
        return environment

    def share(self, secrets: Secrets) -> AbstractAsyncContextManager[Any]:
        """Return the context of the function's host, or of the command's sandbox."""
        if self._spec.sandbox:
            return agents_sandbox(self._spec.sandbox, f"{self.place}.sandbox")
        if not self._spec.function:
            return nullcontext()
        python = interpreter(self._spec)
        ours = sys.path if python == sys.executable else []
        variables = {
            "OPENAI_BASE_URL": f"{NO_MODEL_YET}/v1",
            "ANTHROPIC_BASE_URL": NO_MODEL_YET,
            **lasting_variables(self._spec.variables, secrets),
        }
        return function_host(self._spec.function, python, [*ours, os.getcwd()], variables)

    def remarks(self, shared: Any) -> Sequence[str]:
        """Return what importing the function's module has done that episodes will miss."""
        return shared.remarks if isinstance(shared, FunctionHost) else ()

    def check(self, variables: Mapping[str, str]) -> None:
        """Look for the program, and for what it may read in the sandbox.

        Raises:
            RecipeError: one of them is not there.
        """
        if self._spec.sandbox:
            check_readable(self._spec.sandbox, f"{self.place}.sandbox")
        python = self._spec.python
        if python and shutil.which(python) is None:
            raise RecipeError(f"{self.place}.python", f"there is no program {python!r} here", "write the whole path of a Python")
        if not self._spec.command:
            return
        program = self._spec.command[0]
        if program != "python" and shutil.which(program, path=self._spec.variables.get("PATH", variables.get("PATH"))) is None:
            problem = f"there is no program {program!r} here"
            raise RecipeError(f"{self.place}.command", problem, "write its whole path, or put its folder into PATH")

    def make_tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """Make tasks by the function that ``tasks`` names."""
        return (self._make_tasks or super().make_tasks)(split, count, seed)
