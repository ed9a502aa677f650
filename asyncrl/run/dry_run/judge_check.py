"""Finds out before a launch whether what judges finished episodes can do so: the reward model, the teacher, and their servers."""

import asyncio
import os

from asyncrl.core.recipe.reward import ModelRewardConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.generators.vllm.engine_arguments import check_engine_arguments
from asyncrl.run.models.further_models import read_reward_shape
from asyncrl.run.models.hub import tokenizer_folder
from asyncrl.run.models.model_shape import TINY
from asyncrl.run.reward.service_tokens import service_tokens
from asyncrl.run.teacher.teacher_check import check_teacher_fits


def check_judges(recipe: Recipe) -> None:
    """Check a recipe's judges, where no event loop runs.

    Raises:
        RecipeError: one of them does not fit the policy or is not there, or the token of a server is not.
    """
    service_tokens(recipe, os.environ)
    if isinstance(recipe.reward, ModelRewardConfig):
        read_reward_shape(recipe.reward, recipe.model)
    if recipe.algorithm.teacher is not None:
        check_engine_arguments(recipe.algorithm.teacher.engine, "algorithm.teacher")
        made_later = recipe.model.path == TINY
        policy = None if made_later else tokenizer_folder(recipe.model.path, "model.path")
        asyncio.run(check_teacher_fits(recipe, policy))
