"""What the tools for authors work on: an environment by its name, or the environments of a recipe.

An environment that is named alone gets a recipe with default limits, so that all tools see what a run would see.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.environment import AgentEnvironmentConfig, MemberConfig, member_place
from asyncrl.core.recipe.reward import EnvironmentRewardConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.tasks import FileTasksConfig
from asyncrl.core.task import Task
from asyncrl.envs.load import BUILT_IN
from asyncrl.generators.episode import MALFORMED_PENALTY
from asyncrl.generators.scoring import ENVIRONMENT_REWARD, SCORE
from asyncrl.run.buffer.tasks import load_sources
from asyncrl.run.recipe.compose import compose, shipped_recipes

TASKS = 200
"""Tasks of each split that the tools look at, where the environment makes them."""


class Subject(msgspec.Struct, frozen=True):
    """An environment that plays episodes.

    Attributes:
        member: its name in a mixture; empty if there is none.
        spec: its section of the recipe.
        recipe: the recipe that it stands in.
    """

    member: str
    spec: MemberConfig
    recipe: Recipe

    @property
    def name(self) -> str:
        """The environment's name in findings."""
        return f"{self.member} ({self.spec.label})" if self.member else self.spec.label

    @property
    def compared_rewards(self) -> tuple[str, ...]:
        """The rewards that the recipe compares one by one, but for those that are added to what the environment reports."""
        added = set[str]()
        if not isinstance(self.recipe.reward, EnvironmentRewardConfig):
            added |= {SCORE, ENVIRONMENT_REWARD}
        if not isinstance(self.spec, AgentEnvironmentConfig) and self.spec.malformed_penalty is not None:
            added.add(MALFORMED_PENALTY)
        return tuple(name for name in self.recipe.algorithm.reward_names if name not in added)


def compose_for_author(named: str, overrides: Sequence[str] = ()) -> Recipe:
    """Compose the recipe of what is named; see :func:`recipe_of`.

    Args:
        overrides: keys of the recipe, such as ``environment.options.limit=3``.

    Raises:
        RecipeError: there is no such environment or recipe, or it is not valid.
    """
    with recipe_of(named) as recipe:
        return compose(recipe, overrides)


@contextmanager
def recipe_of(named: str) -> Iterator[str]:
    """Give the path or the name of the recipe that is named, or of one with default limits for an environment.

    Args:
        named: ``module:Class``, the name of a built-in environment, or a recipe's path or name. The name of a built-in
            environment comes before that of a shipped recipe.

    Raises:
        RecipeError: there is no such environment or recipe.
    """
    if named.endswith((".yaml", ".yml")) or (named in shipped_recipes() and named not in BUILT_IN):
        yield named
        return
    if ":" not in named and named not in BUILT_IN:
        known = ", ".join(sorted({*BUILT_IN, *shipped_recipes()}))
        raise RecipeError(
            "", f"{named!r} is no environment and no recipe", f"write `module:Class`, a .yaml file, or one of {known}"
        )
    settings = {
        "name": "environment",
        "steps": 1,
        "model": {"path": "tiny", "max_context": 1024},
        "environment": {"name": named},
        "tasks": {"train": TASKS, "evaluation": TASKS},
    }
    with tempfile.TemporaryDirectory(prefix="asyncrl-") as folder:
        file = Path(folder) / "environment.yaml"
        file.write_bytes(msgspec.json.encode(settings))  # JSON is YAML
        yield str(file)


def subjects_of(recipe: Recipe) -> tuple[Subject, ...]:
    """The environments of a recipe that play episodes.

    Raises:
        RecipeError: an agent plays the episodes of one of them.
    """
    for member, spec in recipe.environment.by_member.items():
        if isinstance(spec, AgentEnvironmentConfig):
            problem = "a program plays its episodes whole, so neither a person nor a script can play them turn by turn"
            remedy = "try it with `asyncrl agent check RECIPE`"
            raise RecipeError(member_place(member), problem, remedy)
    return tuple(Subject(member, spec, recipe) for member, spec in recipe.environment.by_member.items())


def subject_named(recipe: Recipe, member: str | None) -> Subject:
    """The environment of a recipe that is called ``member``; the only one if that is None.

    Raises:
        RecipeError: there is no such environment, or there are several.
    """
    subjects = {subject.member: subject for subject in subjects_of(recipe)}
    if member is None and len(subjects) == 1:
        return next(iter(subjects.values()))
    if member not in subjects:
        problem = (
            "the recipe mixes several environments" if member is None else f"there is no environment {member!r} in the recipe"
        )
        raise RecipeError("--member", problem, f"name one of {', '.join(subjects)}")
    return subjects[member]


def tasks_of(subject: Subject, split: str) -> list[Task]:
    """The first tasks of a split that this environment plays.

    Raises:
        RecipeError: a source cannot be read, or the environment makes no tasks.
    """
    recipe = subject.recipe
    if not has_task_files(recipe):  # its own tasks only
        recipe = msgspec.structs.replace(recipe, environment=subject.spec)
    sources = load_sources(recipe, "train" if split == "train" else "evaluation", TASKS)
    tasks = [source.tasks[index] for source in sources for index in range(min(len(source.tasks), TASKS))]
    if has_task_files(recipe):
        return [task for task in tasks if task.environment == subject.member]
    return [msgspec.structs.replace(task, environment=subject.member) for task in tasks]


def has_task_files(recipe: Recipe) -> bool:
    """Whether the tasks come from files."""
    return isinstance(recipe.tasks, FileTasksConfig)
