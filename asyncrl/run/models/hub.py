"""Models that a recipe names by their id on the Hugging Face hub, such as ``Qwen/Qwen3-0.6B``, or by their address in an object
store, and their files on this machine.

Only what a plan reads is fetched before a run starts; the weights are fetched when it starts. What was fetched once is taken
from the hub's cache on this machine (``HF_HOME``), also without a network. A folder of the same name comes first.
"""

import json
import logging
import os
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.hub import ANSWER_S, MODEL, download_remedy, is_commit, is_hub_id, is_offline, parts, translated
from asyncrl.core.files.model_copies import LICENCES
from asyncrl.core.files.weight_files import PICKLED, pickles
from asyncrl.core.storage.address import is_address
from asyncrl.core.storage.fetched import fetched

logger = logging.getLogger(__name__)

_WEIGHTS = "*.safetensors"
_PATTERNS = ("*.json", _WEIGHTS, "*.jinja", "tokenizer.model", "*.txt", *LICENCES)
_CONFIG = "config.json"


def model_file(path: str, name: str, place: str) -> Path:
    """Return the path of one file of a model, which may be missing if the model is a folder. Asks the hub if it must.

    Args:
        path: a folder or an id on the hub.
        name: name of the file, e.g. ``config.json``.
        place: recipe key to blame.

    Raises:
        RecipeError: the hub has no such model, or cannot be asked.
    """
    if is_address(path):
        return fetched(path, place, name.__eq__) / name
    if not is_hub_id(path):
        return Path(path) / name
    from huggingface_hub import hf_hub_download  # takes a second

    repository, revision = parts(path)
    with translated(path, place, MODEL):
        cached_only = not is_commit(revision) and not _is_reachable(repository, name, revision)
        return Path(str(hf_hub_download(repository, name, revision=revision, local_files_only=cached_only)))


def tokenizer_folder(path: str, place: str) -> Path:
    """Return the absolute path of a folder with all files of a model but its weights; those of the hub are fetched if it answers.

    Args:
        path: a folder or an id on the hub.
        place: recipe key to blame.

    Raises:
        RecipeError: the hub has no such model, or cannot be asked.
    """
    return _downloaded(path, place, [pattern for pattern in _PATTERNS if pattern != _WEIGHTS])


def folder_with_weights(path: str) -> Path | None:
    """Return the absolute path of a model's folder if its weights are on this machine; None if they are yet to be fetched."""
    if is_address(path):
        return None
    if not is_hub_id(path):
        return Path(os.path.realpath(path))
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repository, revision = parts(path)
    try:
        folder = Path(str(snapshot_download(repository, revision=revision, local_files_only=True)))
    except LocalEntryNotFoundError:
        return None
    return None if _missing_weights(folder) else folder


def model_folder(path: str, place: str) -> Path:
    """Return the absolute path of a model's folder, after fetching what is missing of a model of the hub.

    Args:
        path: a folder or an id on the hub.
        place: recipe key to blame.

    Raises:
        RecipeError: the hub has no such model, cannot be asked, or a file of its weights is missing.
    """
    folder = _downloaded(path, place, _PATTERNS)
    if is_hub_id(path) and (missing := _missing_weights(folder)):
        raise _without_weights(path, folder, missing, place)
    return folder


def _without_weights(path: str, folder: Path, missing: str, place: str) -> RecipeError:
    """Say why the cache lacks a file of weights: the hub has none, or the weights are pickles, or it was not fetched."""
    from huggingface_hub import HfApi

    repository, revision = parts(path)
    names, on_hub = [each.name for each in folder.iterdir()], False
    with translated(path, place, MODEL):
        if on_hub := _is_reachable(repository, _CONFIG, revision):
            names = HfApi().list_repo_files(repository, revision=revision)
    if pickled := sorted(name for name in names if fnmatch(name, PICKLED)):
        problem, convert = pickles(repository, pickled[0], "FOLDER")
        remedy = f"if you trust it, run `hf download {repository} --local-dir FOLDER`, then {convert}, and set {place}=FOLDER"
        return RecipeError(place, problem, remedy)
    if on_hub and missing not in names:
        problem = f"the Hugging Face hub has no {missing} of {path}"
        return RecipeError(place, problem, "name a model whose weights are safetensors")
    problem = f"{missing} of {path} is not in {folder}, the cache of this machine"
    return RecipeError(place, problem, download_remedy(repository, place, MODEL))


def _downloaded(path: str, place: str, patterns: Sequence[str]) -> Path:
    """Return the absolute path of a model's folder; those of its files that match ``patterns`` are fetched if the hub answers."""
    if is_address(path):
        return fetched(path, place, lambda name: any(fnmatch(name, pattern) for pattern in patterns))
    if not is_hub_id(path):
        return Path(os.path.realpath(path))  # resolve() raises RuntimeError where links lead in a circle
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # the live view has the terminal
    repository, revision = parts(path)
    with translated(path, place, MODEL):
        here = not _is_reachable(repository, _CONFIG, revision)
        return Path(str(snapshot_download(repository, revision=revision, allow_patterns=list(patterns), local_files_only=here)))


def _missing_weights(folder: Path) -> str:
    """Return the name of the first file of weights that is missing; empty if all are there."""
    index = folder / "model.safetensors.index.json"
    names = sorted(set(json.loads(index.read_bytes())["weight_map"].values())) if index.is_file() else ["model.safetensors"]
    return next((name for name in names if not (folder / name).is_file()), "")


def pinned(path: str, place: str) -> str:
    """Return the id with the commit that it means now, so that a resumed run has the same model; a folder stays as it is.

    Raises:
        RecipeError: as :func:`model_file`.
    """
    if not is_hub_id(path):
        return path
    commit = model_file(path, _CONFIG, place).parent.name
    return f"{parts(path)[0]}@{commit}"


def _is_reachable(repository: str, name: str, revision: str | None) -> bool:
    """Return whether the hub answers. Its client would try for half a minute before it says no.

    Raises:
        HfHubHTTPError: it answers that there is no such model, revision or file, or that it may not be read.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    if is_offline():
        return False
    try:
        get_hf_file_metadata(hf_hub_url(repository, name, revision=revision), timeout=ANSWER_S)
    except HfHubHTTPError:
        raise
    except Exception as error:  # noqa: BLE001 - what the client's transport raises has no public base class
        logger.info("the Hugging Face hub cannot be reached: %s", error)
        return False
    return True
