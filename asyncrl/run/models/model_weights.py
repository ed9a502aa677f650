"""Checks the weights of a recipe's policies by the headers of their files, before anything loads them."""

from collections.abc import Mapping
from pathlib import Path

from asyncrl.core.architectures.architecture import EMBEDDING, OUTPUT
from asyncrl.core.errors import RecipeError
from asyncrl.core.files.weight_files import StoredTensor, check_present, check_weights, stored_tensors
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.models.dequantised import quantisation
from asyncrl.run.models.hub import folder_with_weights
from asyncrl.run.models.model_shape import TINY, ModelShape, check_tied, read_shape
from asyncrl.run.models.model_sources import REFERENCE, named_reference


def check_model_weights(recipe: Recipe) -> None:
    """Check the weights of the policy and of the reference policy. Those of the hub that are not here yet are left out.

    Raises:
        RecipeError: a file is missing or not whole; a tensor is missing, of no use, or of another shape or type than the model
            has; or there is an output layer beside the embedding to which it is tied, and differs from it.
    """
    for path, place in ((recipe.model.path, "model.path"), (named_reference(recipe), REFERENCE)):
        if path not in ("", TINY) and (folder := folder_with_weights(path)) is not None:
            check_folder(folder, read_shape(path), place)


def check_folder(folder: Path, shape: ModelShape, place: str) -> None:
    """Check the weights of one model, by the headers of their files. Raises as :func:`check_model_weights`."""
    stored = _without_predictors(stored_tensors(folder, place), shape)
    if not quantisation(folder):
        check_weights(stored, shape.architecture.tensors(), folder, place)
        return
    parts = {name.rpartition(".")[0] for name in stored}
    for tensor in shape.architecture.tensors():
        if tensor.name.rpartition(".")[0] not in parts:  # a method of quantisation names what it makes of a weight as it likes
            raise RecipeError(place, f"{folder} lacks tensor {tensor.name}, quantised or not", "download the model again")


def _without_predictors(stored: Mapping[str, StoredTensor], shape: ModelShape) -> dict[str, StoredTensor]:
    """Leave out the layers that predict further tokens, which lie behind the model's own. Engines that sample without them do not
    read them, and nothing trains them."""
    first = shape.num_hidden_layers
    prefixes = tuple(f"model.layers.{layer}." for layer in range(first, first + shape.num_nextn_predict_layers))
    return {name: tensor for name, tensor in stored.items() if not name.startswith(prefixes)}


def check_played(folder: Path) -> None:
    """Check the weights of a model that is only played, as far as its architecture is known; engines know further ones.

    Raises:
        RecipeError: a file is missing or not whole, or a tensor is missing, or of another shape or type than the model has.
    """
    stored = stored_tensors(folder, "model.path")
    try:
        shape = read_shape(str(folder))
    except RecipeError:
        return
    if OUTPUT not in stored:
        check_tied(shape)
    if not quantisation(folder):
        check_present(stored, shape.architecture.tensors(), folder, "model.path")


def check_output(folder: Path, *, tied: bool) -> None:
    """Check that a model which is only played has an output layer: without one, engines would sample from zeros.

    Weights that are not here yet, and models that name their embedding otherwise, are left out.

    Args:
        tied: whether its configuration, or what transformers takes where that is silent, ties it to the embedding.

    Raises:
        RecipeError: it has none, and a file of weights is not whole.
    """
    if tied or not any(folder.glob("*.safetensors")):
        return
    stored = stored_tensors(folder, "model.path")
    head = OUTPUT.removesuffix("weight")  # quantised, it has parts of other names
    if EMBEDDING in stored and not any(name.startswith(head) for name in stored):
        remedy = "set tie_word_embeddings to true there if the output layer is the embedding, or name a folder with all weights"
        raise RecipeError(
            "model.path", f"{folder} lacks tensor {OUTPUT}, and its config.json does not tie it to {EMBEDDING}", remedy
        )
