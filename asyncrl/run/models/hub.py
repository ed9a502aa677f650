"""Models that a recipe names by their id on the Hugging Face hub, such as ``Qwen/Qwen3-0.6B``, and their files on this machine.

Only what a plan reads is fetched before a run starts; the weights are fetched when it starts. What was fetched once is taken
from the hub's cache on this machine (``HF_HOME``), also without a network. A folder of the same name comes first.
"""

import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from asyncrl.core.errors import RecipeError

logger = logging.getLogger(__name__)

_ID = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_WEIGHTS = "*.safetensors"
_PATTERNS = ("*.json", _WEIGHTS, "*.jinja", "tokenizer.model", "*.txt")
_CONFIG = "config.json"
_COMMIT = re.compile("[0-9a-f]{40}")
_ANSWER_S = 10.0


def is_hub_id(path: str) -> bool:
    """Return whether ``path`` names a model of the hub, as ``organisation/name`` or ``organisation/name@revision``."""
    return _ID.fullmatch(path) is not None and not Path(path).exists()


def model_file(path: str, name: str, place: str) -> Path:
    """Return the path of one file of a model, which may be missing if the model is a folder. Asks the hub if it must.

    Args:
        path: a folder or an id on the hub.
        name: name of the file, e.g. ``config.json``.
        place: recipe key to blame.

    Raises:
        RecipeError: the hub has no such model, or cannot be asked.
    """
    if not is_hub_id(path):
        return Path(path) / name
    from huggingface_hub import hf_hub_download  # takes a second

    repository, revision = _parts(path)
    with _translated(path, place):
        cached_only = not _COMMIT.fullmatch(revision or "") and not _is_reachable(repository, name, revision)
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
    if not is_hub_id(path):
        return Path(path).resolve()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repository, revision = _parts(path)
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
        problem = f"{missing} of {path} is not in {folder}, the cache of this machine"
        raise RecipeError(place, problem, _remedy(_parts(path)[0], place))
    return folder


def _downloaded(path: str, place: str, patterns: Sequence[str]) -> Path:
    """Return the absolute path of a model's folder; those of its files that match ``patterns`` are fetched if the hub answers."""
    if not is_hub_id(path):
        return Path(path).resolve()
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # the live view has the terminal
    repository, revision = _parts(path)
    with _translated(path, place):
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
    return f"{_parts(path)[0]}@{commit}"


def _parts(path: str) -> tuple[str, str | None]:
    found = _ID.fullmatch(path)
    assert found is not None
    return found["repository"], found["revision"]


def _is_reachable(repository: str, name: str, revision: str | None) -> bool:
    """Return whether the hub answers. Its client would try for half a minute before it says no.

    Raises:
        HfHubHTTPError: it answers that there is no such model, revision or file, or that it may not be read.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    if _is_offline():
        return False
    try:
        get_hf_file_metadata(hf_hub_url(repository, name, revision=revision), timeout=_ANSWER_S)
    except HfHubHTTPError:
        raise
    except Exception as error:  # noqa: BLE001 - what the client's transport raises has no public base class
        logger.info("the Hugging Face hub cannot be reached: %s", error)
        return False
    return True


@contextmanager
def _translated(path: str, place: str) -> Iterator[None]:
    """Turn what the hub's client raises into recipe errors."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    repository = _parts(path)[0]
    nowhere = f"there is no folder {path!r}"
    try:
        yield
    except GatedRepoError as error:
        remedy = f"accept its terms at https://huggingface.co/{repository}, and set HF_TOKEN"
        raise RecipeError(place, f"{nowhere}, and the model {repository} of the Hugging Face hub is gated", remedy) from error
    except RevisionNotFoundError as error:
        remedy = "name a branch, a tag or a commit after the @"
        raise RecipeError(place, f"{nowhere}, and {repository} has no such revision on the Hugging Face hub", remedy) from error
    except RepositoryNotFoundError as error:
        remedy = "name a folder that holds config.json, correct the id, or set HF_TOKEN if the model is private"
        raise RecipeError(place, f"{nowhere}, and the Hugging Face hub has no model {repository}", remedy) from error
    except HFValidationError as error:
        raise RecipeError(place, f"there is no folder {path!r}", "name a folder that holds config.json") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, OSError) as error:
        why = "is switched off (HF_HUB_OFFLINE)" if _is_offline() else "cannot be reached"
        problem = f"{nowhere}, the model {repository} is not in the cache of this machine, and the Hugging Face hub {why}"
        raise RecipeError(place, problem, _remedy(repository, place)) from error
    except EntryNotFoundError as error:
        problem = f"the model {repository} of the Hugging Face hub lacks a file: {str(error).splitlines()[0]}"
        raise RecipeError(place, problem, "name a model with config.json and safetensors") from error


def _remedy(repository: str, place: str) -> str:
    return (
        f"where there is a network, run `hf download {repository} --local-dir FOLDER`, copy FOLDER to this machine, and set "
        f"{place}=FOLDER"
    )


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)
