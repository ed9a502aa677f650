"""Gives the weights of a policy version as a Hugging Face folder.

What always holds: the folder that a version is exported to appears whole or not at all, and nothing that was there is replaced.
"""

import asyncio
import tempfile
from pathlib import Path

from asyncrl.core.files.model_copies import check_can_be_made, copy_folder
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.evaluation.export import export_checkpoint
from asyncrl.run.evaluation.found_model import EvaluatedModel, Weights, recipe_that_trained
from asyncrl.run.folder.run_folder import RunFolder, in_launch_directory
from asyncrl.run.models.model_sources import name_base
from asyncrl.run.models.template_facts import write_templates
from asyncrl.run.resolve_model import resolve_model
from asyncrl.run.views.live_view import LiveView


async def weights_of(model: EvaluatedModel, recipe: Recipe, made: Path, view: LiveView) -> Path:
    """Return a Hugging Face folder with the weights of ``model``.

    Args:
        recipe: the recipe that trained it; for a model of no run, a recipe that names it.
        made: where the folder is made, if the weights lie in a checkpoint.

    Raises:
        ComponentFailed: the checkpoint cannot be exported, or the tiny model could not be made.
        DeadlineExceeded: it took longer than ``deadlines.start``.
        RecipeError: the model of the hub that a run began with could not be fetched.
    """
    match model.weights:
        case Weights.FOLDER:
            return model.path
        case Weights.CHECKPOINT:
            base = await resolve_model(recipe, view)
            view.phase(f"Exporting {model.name}")
            await export_checkpoint(model.path, recipe, base, made)
            return made
        case _:
            return await resolve_model(recipe, view)


def model_folder(model: EvaluatedModel, recipe: Recipe, view: LiveView) -> Path:
    """Return the Hugging Face folder of a model that needs no export; a model of the hub is fetched, the tiny one made.

    Raises what :func:`weights_of` raises.
    """
    return model.path if model.weights is Weights.FOLDER else asyncio.run(resolve_model(recipe, view))


def export_version(model: EvaluatedModel, folder: Path, view: LiveView) -> None:
    """Write a policy version of a run as the new Hugging Face folder ``folder``.

    Raises:
        RecipeError: there is something at ``folder`` already, or its parent does not exist.
        OSError, ComponentFailed, DeadlineExceeded: the version cannot be written; nothing is left at ``folder``.
    """
    assert model.run is not None
    check_can_be_made(folder)
    with (
        tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as making,
        in_launch_directory(RunFolder.find(model.run)),
    ):
        made = Path(making).resolve() / "model"
        trained_by = recipe_that_trained(model.run)
        weights = asyncio.run(weights_of(model, trained_by, made, view))
        if weights != made:
            copy_folder(weights, made)
        write_templates(made, trained_by.model)
        name_base(made, trained_by.model)
        made.rename(folder)
