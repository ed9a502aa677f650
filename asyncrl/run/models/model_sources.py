"""The models that a recipe names, and where their files are: ids on the hub are pinned to a commit, and fetched for a run; a
template of the recipe's own is read."""

from functools import partial
from pathlib import Path

import msgspec

from asyncrl.core.deadline import deadline
from asyncrl.core.files.file_errors import naming
from asyncrl.core.files.hub import is_hub_id, parts
from asyncrl.core.files.weight_files import ADAPTER
from asyncrl.core.recipe.algorithm import NoKlConfig
from asyncrl.core.recipe.schema import ModelConfig, Recipe
from asyncrl.core.storage.address import is_address
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from asyncrl.run.models.hub import model_folder, pinned
from asyncrl.run.models.template_facts import template_text

ADAPTER_CONFIG = f"adapter/{ADAPTER}"
"""What an exported folder has beside merged weights, if adapters were trained."""
REFERENCE, TEACHER = "algorithm.kl.reference", "algorithm.teacher.path"


def named_reference(recipe: Recipe) -> str:
    """The model that the recipe names as its reference policy; empty if it names none."""
    kl = recipe.algorithm.kl
    return "" if isinstance(kl, NoKlConfig) else kl.reference


def named_teacher(recipe: Recipe) -> str:
    """The model that the recipe names as its teacher; empty if it names none, or a server."""
    teacher = recipe.algorithm.teacher
    return "" if teacher is None or teacher.path is None else teacher.path


def with_pinned_models(recipe: Recipe) -> Recipe:
    """Return the recipe with the commit of each model that it names by an id on the hub, and the text of a chat template that it
    names by a file: a resume then has the same model and the same prompts.

    Raises:
        RecipeError: the hub has no such model, or cannot be asked and the model is not in this machine's cache; or there is no
            such template.
    """
    path = pinned(recipe.model.path, "model.path")
    template = None if recipe.model.chat_template is None else template_text(recipe.model.chat_template)
    model = msgspec.structs.replace(recipe.model, path=path, chat_template=template)
    recipe = msgspec.structs.replace(recipe, model=model)
    recipe = _with_reference(recipe, pinned(named_reference(recipe), REFERENCE))
    return _with_teacher(recipe, pinned(named_teacher(recipe), TEACHER))


async def fetch_model(path: str, place: str, deadline_s: float) -> Path:
    """Return the absolute path of a model's folder; a model of the hub is fetched if it is not in this machine's cache.

    Raises:
        RecipeError: it cannot be fetched.
        DeadlineExceeded: fetching it takes longer than ``deadline_s``.
    """
    remedy, where = (
        f"run `hf download {path.partition('@')[0]}` beforehand, or raise deadlines.start",
        " from the Hugging Face hub",
    )
    if is_address(path):
        remedy, where = "raise deadlines.start", ""
    async with deadline(deadline_s, waiter="the driver", owner=f"model {path}{where}", remedy=remedy):
        return await run_in_daemon_thread(partial(model_folder, path, place), "fetch a model")


async def with_local_reference(recipe: Recipe) -> Recipe:
    """Return the recipe with the absolute path of the reference policy's folder, if it names one.

    Raises what :func:`fetch_model` raises.
    """
    named = named_reference(recipe)
    return _with_reference(recipe, str(await fetch_model(named, REFERENCE, recipe.deadlines.start))) if named else recipe


async def with_local_teacher(recipe: Recipe) -> Recipe:
    """Return the recipe with the absolute path of the teacher's folder, if it names one.

    Raises what :func:`fetch_model` raises.
    """
    named = named_teacher(recipe)
    return _with_teacher(recipe, str(await fetch_model(named, TEACHER, recipe.deadlines.start))) if named else recipe


def name_base(folder: Path, model: ModelConfig) -> None:
    """Have the adapter in an exported folder, if there is one, name the model of the hub that it is added to: where that lay on
    this machine means nothing elsewhere.

    Raises:
        OSError: the disk refuses.
    """
    config = folder / ADAPTER_CONFIG
    if not config.is_file() or not is_hub_id(model.path):
        return
    repository, revision = parts(model.path)
    with naming(config):
        named = {"base_model_name_or_path": repository, "revision": revision}
        content = msgspec.json.decode(config.read_bytes(), type=dict[str, object]) | named
        config.write_bytes(msgspec.json.format(msgspec.json.encode(content)))


def is_remote(recipe: Recipe) -> bool:
    """Return whether the recipe names a model by an id on the hub, or by an address in an object store."""
    named = (recipe.model.path, named_reference(recipe), named_teacher(recipe))
    return any(is_hub_id(each) or is_address(each) for each in named)


def _with_reference(recipe: Recipe, reference: str) -> Recipe:
    if isinstance(recipe.algorithm.kl, NoKlConfig):
        return recipe
    kl = msgspec.structs.replace(recipe.algorithm.kl, reference=reference)
    return msgspec.structs.replace(recipe, algorithm=msgspec.structs.replace(recipe.algorithm, kl=kl))


def _with_teacher(recipe: Recipe, path: str) -> Recipe:
    teacher = recipe.algorithm.teacher
    if teacher is None or not path:
        return recipe
    algorithm = msgspec.structs.replace(recipe.algorithm, teacher=msgspec.structs.replace(teacher, path=path))
    return msgspec.structs.replace(recipe, algorithm=algorithm)
