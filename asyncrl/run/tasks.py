"""The tasks a recipe names, from files or from the environment itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import GeneratedTasks, Recipe
from asyncrl.core.task import Task
from asyncrl.envs.load import environment_class
from buffers.tasks import read_json_lines


def load_tasks(recipe: Recipe, split: Literal["train", "evaluation"]) -> Sequence[Task]:
    """Tasks of one split.

    Raises:
        RecipeError: the file cannot be read, or the environment makes no tasks of its own.
    """
    tasks = recipe.tasks
    place = f"tasks.{split}"
    if not isinstance(tasks, GeneratedTasks):
        return read_json_lines(Path(getattr(tasks, split)), place)
    try:
        return environment_class(recipe.environment.name).make_tasks(split, getattr(tasks, split), recipe.seed)
    except NotImplementedError as error:
        raise RecipeError(place, str(error), "set tasks.kind to jsonl and name the files") from error
