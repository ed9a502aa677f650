"""Finds the model that a recipe names: a Hugging Face folder, whose weights are dequantised if they are quantised, or the tiny
model, which is made if it is not there.

The tiny model is made in a separate process: training it in the driver would load torch there, and could not be
interrupted.
"""

from pathlib import Path

import msgspec

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.host.helper_process import run_helper
from asyncrl.run.models.dequantised import plain_folder, quantisation
from asyncrl.run.models.model_shape import TINY, read_shape
from asyncrl.run.models.model_sources import fetch_model, is_remote
from asyncrl.run.tiny.lessons import players_of
from asyncrl.run.tiny.warm_up import Made, Request, Step
from asyncrl.run.views.live_view import LiveView


async def resolve_model(recipe: Recipe, view: LiveView) -> Path:
    """Return the path of a Hugging Face folder with the model's unquantised weights, which is made first if it is not there.

    Raises:
        ComponentFailed: the tiny model could not be made, or quantised weights could not be dequantised.
        RecipeError: a model of the hub could not be fetched, or the folder holds no model.
        DeadlineExceeded: making or fetching it took too long.
    """
    if is_remote(recipe):
        view.phase("Fetching the model")
    if recipe.model.path == TINY:
        request = Request(players_of(recipe), recipe.model, recipe.seed)
        return await _make_tiny(request, recipe.deadlines.start, view)
    folder = await fetch_model(recipe.model.path, "model.path", recipe.deadlines.start)
    read_shape(str(folder))  # refuses a folder without a model
    if quantisation(folder):
        view.phase("Dequantising the model")
    return await plain_folder(folder, recipe.deadlines.start)


async def _make_tiny(request: Request, seconds: float, view: LiveView) -> Path:
    view.phase("Making the tiny model")
    made: list[Path] = []

    def seen(line: bytes) -> None:
        match msgspec.json.decode(line, type=Step | Made):
            case Step(fraction=fraction, text=text):
                view.advance(fraction, text)
            case Made(path=path):
                made.append(Path(path))

    try:
        await run_helper("asyncrl.run.tiny.warm_up", request, seen, task="making the tiny model", seconds=seconds)
    except ComponentFailed as error:
        where = "the model is made in ~/.cache/asyncrl, or in the folder that ASYNCRL_CACHE names"
        raise ComponentFailed(f"{error}; {where}") from error
    (path,) = made
    return path
