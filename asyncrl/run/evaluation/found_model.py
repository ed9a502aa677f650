"""The models that can be evaluated: a Hugging Face folder, a model of the hub, the tiny model, or a policy version of a run.

A run has the version it began with (0), one for each checkpoint of its learner, and the trained model once it has completed.
"""

from enum import StrEnum
from pathlib import Path

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_formats import UnknownFormat
from asyncrl.core.files.hub import is_hub_id
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.storage.address import is_address
from asyncrl.learners.checkpointing import checkpoints
from asyncrl.run.folder.run_folder import RunFolder, in_launch_directory
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.models.model_shape import TINY
from asyncrl.run.recipe.compose import compose


class Weights(StrEnum):
    """Where the weights of a model come from."""

    FOLDER = "folder"
    """A Hugging Face folder has them."""
    NAMED = "named"
    """They are the tiny model's, which is made on this machine, or those of a model of the hub, which is fetched."""
    START = "start"
    """They are those that a run began with."""
    CHECKPOINT = "checkpoint"
    """A checkpoint of a run's learner has them."""


NAME_A_MODEL = "name a Hugging Face folder, a model of the hub as organisation/name, the folder of a run, or `tiny`"
"""The remedy where there is no model."""
_ORIGIN = {
    Weights.START: "what it began with",
    Weights.CHECKPOINT: "a checkpoint",
    Weights.FOLDER: "the trained model",
}


class EvaluatedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is to be evaluated.

    Attributes:
        name: what tables call it.
        path: the folder of the model or checkpoint that has the weights.
        run: the run whose version it is; None for a model of no run.
        version: the run's policy version; None if it is not known.
    """

    name: str
    weights: Weights
    path: Path
    run: Path | None = None
    version: PolicyVersion | None = None

    @property
    def is_trained(self) -> bool:
        """Whether a run has trained its weights."""
        return self.run is not None and self.weights is not Weights.START


def find_model(word: str, version: int | None = None) -> EvaluatedModel:
    """Find the model that ``word`` means.

    Args:
        word: a path, an id on the Hugging Face hub, or ``tiny``.
        version: the policy version of a run; its newest if None.

    Raises:
        RecipeError: there is no such model, or the run does not have this version.
    """
    path = Path(word)
    if (path / "recipe.yaml").is_file():
        return _version_of(RunFolder.find(path), version)
    if version is not None:
        raise RecipeError("--version", f"{word!r} is no run, so it has no version {version}", "leave it out, or name a run")
    if word == TINY or (is_hub_id(word) and not path.parent.is_dir()):
        return EvaluatedModel(name=word, weights=Weights.NAMED, path=path)
    if not (path / "config.json").is_file():
        problem = "has neither config.json nor recipe.yaml" if path.is_dir() else "does not exist"
        raise RecipeError(
            "",
            f"model {word!r} {problem}",
            NAME_A_MODEL,
        )
    return EvaluatedModel(name=path.resolve().name, weights=Weights.FOLDER, path=path.resolve())


def _version_of(run: RunFolder, version: int | None) -> EvaluatedModel:
    there = _versions(run)
    if version is None:
        later = [each for each in there if each.version]
        return max(later, key=lambda each: each.version or 0) if later else there[-1]
    for each in there:
        if each.version == version:
            return each
    saved = ", ".join(f"{each.version} ({_ORIGIN[each.weights]})" for each in there if each.version is not None)
    raise RecipeError("--version", f"{run.path} does not have version {version}", f"it has {saved}")


def _versions(run: RunFolder) -> list[EvaluatedModel]:
    """Return the versions of a run that are there, in order; a trained model comes before the checkpoint of its version."""
    start = EvaluatedModel(
        name=f"{run.path.name} version 0", weights=Weights.START, path=run.path, run=run.path, version=PolicyVersion(0)
    )
    saved = [
        EvaluatedModel(
            name=f"{run.path.name} version {number}", weights=Weights.CHECKPOINT, path=path, run=run.path, version=number
        )
        for path in sorted(run.checkpoints.glob("version-*"))
        if path.is_dir() and (number := checkpoints.version_of(path))
    ]
    if not (run.model / "config.json").is_file():
        return [start, *saved]
    trained = _trained_version(run)
    name = run.path.name if trained is None else f"{run.path.name} version {trained}"
    model = EvaluatedModel(name=name, weights=Weights.FOLDER, path=run.model, run=run.path, version=trained)
    return [start, *(each for each in saved if each.version != trained), model]


def _trained_version(run: RunFolder) -> PolicyVersion | None:
    """Return the version of the trained model; None if the run has not ended since it was made longer."""
    try:
        summary = Summary.read(run.summary)
    except (OSError, ValueError, RecursionError, UnknownFormat):
        return None
    return PolicyVersion(summary.steps) if summary.status is Status.COMPLETED else None


def recipe_that_trained(run: Path) -> Recipe:
    """Return the recipe of a run, with the absolute path of the model that the run began with."""
    folder = RunFolder.find(run)
    with in_launch_directory(folder):
        recipe = compose(str(folder.recipe))
        path = recipe.model.path
        if path == TINY or is_hub_id(path) or is_address(path):
            return recipe
        return msgspec.structs.replace(recipe, model=msgspec.structs.replace(recipe.model, path=str(Path(path).resolve())))
