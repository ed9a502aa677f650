"""Finds out whether a recipe's teacher fits its policy, wherever the teacher is."""

import asyncio
import os
from pathlib import Path

from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.models.further_models import check_teacher
from asyncrl.run.reward.service_tokens import service_tokens
from asyncrl.run.teacher.remote_teacher import check_server


async def check_teacher_fits(recipe: Recipe, policy: Path | None) -> None:
    """Check the recipe's teacher, if it has one.

    Args:
        policy: the folder with the policy's tokenizer; None if it is not made yet, and tokens are compared later.

    Raises:
        RecipeError: it does not fit, or is not there.
    """
    teacher = recipe.algorithm.teacher
    if teacher is None:
        return
    if teacher.url is None:
        await asyncio.to_thread(check_teacher, recipe, policy)
    else:
        await check_server(teacher, service_tokens(recipe, os.environ), policy, recipe.model.max_context, recipe.deadlines.start)
