"""The tasks a recipe names, from files or from the environment itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from asyncrl.core.recipe.schema import GeneratedTasks, Recipe
from asyncrl.core.task import Task
from asyncrl.envs.load import make_tasks
from buffers.tasks import read_json_lines


def load_tasks(recipe: Recipe, split: Literal["train", "evaluation"]) -> Sequence[Task]:
    """Tasks of one split.

    Raises:
        RecipeError: the file cannot be read, or the environment makes no tasks of its own.
    """
    where = getattr(recipe.tasks, split)
    if isinstance(recipe.tasks, GeneratedTasks):
        return make_tasks(recipe.environment, split, where, recipe.seed)
    return read_json_lines(Path(where), f"tasks.{split}")
