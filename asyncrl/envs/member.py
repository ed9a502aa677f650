"""One environment of a recipe, loaded and checked: what a worker needs to play its episodes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.environment import MemberConfig
from asyncrl.core.task import Task
from asyncrl.envs.base import Environment
from asyncrl.envs.hosting.episode_resources import Provided
from asyncrl.envs.hosting.tool_messages import Load
from asyncrl.envs.secrets import Secrets


class Member(ABC):
    """An environment that plays episodes: the only one of a recipe, or one of a mixture.

    Attributes:
        spec: its section of the recipe.
        place: the recipe key of that section, for errors.
    """

    def __init__(self, spec: MemberConfig, place: str) -> None:
        self.spec, self.place = spec, place

    @property
    def process_class(self) -> Load | None:
        """The class that processes must be able to load for its tools; None if no tool needs one."""
        return None

    @abstractmethod
    def make(self, provided: Provided = Provided()) -> Environment:  # noqa: B008 - immutable
        """Make the environment of one episode."""

    def share(self, secrets: Secrets) -> AbstractAsyncContextManager[Any]:
        """Return the context of what all its episodes in a worker share; its value is given to each as ``provided.shared``."""
        return nullcontext()

    def check(self, variables: Mapping[str, str]) -> None:
        """Check at launch what loading cannot see, such as whether a server answers.

        Args:
            variables: the environment variables of this process.

        Raises:
            RecipeError: it cannot be used.
        """

    def remarks(self, shared: Any) -> Sequence[str]:
        """Return sentences for the user about ``shared``, the value of :meth:`share`, so far."""
        return ()

    def make_tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """Make tasks; see :meth:`Environment.make_tasks`.

        Raises:
            RecipeError: it makes no tasks, or it raises while it makes them.
        """
        kind = type(self.spec).__struct_config__.tag
        otherwise = "name a function under environment.tasks, or " if hasattr(self.spec, "tasks") else ""
        problem = f"an environment of kind {kind} makes no tasks of its own"
        raise RecipeError("tasks.kind", problem, f"{otherwise}use `files` and name the files")
