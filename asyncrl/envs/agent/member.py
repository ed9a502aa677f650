"""An environment of kind ``agent``, loaded and checked."""

import shutil
from collections.abc import Mapping, Sequence

from asyncrl.core.errors import RecipeError
from asyncrl.core.plug_ins.plug_in import users_code
from asyncrl.core.recipe.environment import AgentEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs.agent.environment import AgentEnvironment
from asyncrl.envs.base import Environment
from asyncrl.envs.hosting.episode_resources import Provided
from asyncrl.envs.member import Member
from asyncrl.envs.rewards.load import load_reward
from asyncrl.envs.task_maker import load_maker


class AgentMember(Member):
    """A command that plays episodes.

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

    def check(self, variables: Mapping[str, str]) -> None:
        """Look for the program.

        Raises:
            RecipeError: it is not on the path.
        """
        program = self._spec.command[0]
        if program != "python" and shutil.which(program, path=self._spec.variables.get("PATH", variables.get("PATH"))) is None:
            problem = f"there is no program {program!r} here"
            raise RecipeError(f"{self.place}.command", problem, "write its whole path, or put its folder into PATH")

    def make_tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """Make tasks by the function that ``tasks`` names."""
        if self._make_tasks is None:
            return super().make_tasks(split, count, seed)
        with users_code(f"{self._spec.tasks} raised", f"{self.place}.tasks", "correct it"):
            tasks = self._make_tasks(split, count, seed)
            return list(tasks) if isinstance(tasks, Sequence) else tasks
