"""Checks the weights of a recipe's policies by the headers of their files, before anything loads them."""

from asyncrl.core.files.weight_files import check_weights, stored_tensors
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.models.hub import folder_with_weights
from asyncrl.run.models.model_shape import TINY, read_shape
from asyncrl.run.models.model_sources import REFERENCE, named_reference


def check_model_weights(recipe: Recipe) -> None:
    """Check the weights of the policy and of the reference policy. Those of the hub that are not here yet are left out.

    Raises:
        RecipeError: a file is missing or not whole; or a tensor is missing, or of another shape or type than the model has.
    """
    for path, place in ((recipe.model.path, "model.path"), (named_reference(recipe), REFERENCE)):
        if path in ("", TINY):
            continue
        if (folder := folder_with_weights(path)) is not None:
            check_weights(stored_tensors(folder, place), read_shape(path).architecture.tensors(), folder, place)
