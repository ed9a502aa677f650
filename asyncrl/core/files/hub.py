"""What models and data sets of the Hugging Face hub have in common: how a recipe names them, and what is said if they cannot be
had."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from asyncrl.core.errors import RecipeError

_ID = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_COMMIT = re.compile("[0-9a-f]{40}")
ANSWER_S = 10.0
"""How long the hub may take to answer; its client would try for half a minute before it gives up."""


def is_hub_id(path: str) -> bool:
    """Return whether ``path`` reads ``organisation/name`` or ``organisation/name@revision``, and is nothing on this machine."""
    return _ID.fullmatch(path) is not None and not Path(path).exists()


def is_commit(revision: str | None) -> bool:
    """Return whether a revision can only ever mean one thing."""
    return _COMMIT.fullmatch(revision or "") is not None


def parts(path: str) -> tuple[str, str | None]:
    """Return the repository and the revision that an id names; None if it names no revision."""
    found = _ID.fullmatch(path)
    assert found is not None
    return found["repository"], found["revision"]


def is_offline() -> bool:
    """Return whether the user has switched the hub off."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


class HubKind(msgspec.Struct, frozen=True):
    """What the texts of errors say of one kind of repository.

    Attributes:
        noun: what one is called.
        here: what else the path could have named on this machine.
        page: what comes before the id in the address of its page.
        correct: the remedy if there is no such repository.
        download: the remedy if it is neither here nor to be fetched; ``{repository}`` and ``{place}`` are filled in.
    """

    noun: str
    here: str
    page: str
    correct: str
    download: str


MODEL = HubKind(
    "model",
    "folder",
    "https://huggingface.co/",
    "name a folder that holds config.json, correct the id, or set HF_TOKEN if the model is private",
    "where there is a network, run `hf download {repository} --local-dir FOLDER`, copy FOLDER to this machine, and set "
    "{place}=FOLDER",
)
DATA_SET = HubKind(
    "data set",
    "file or folder",
    "https://huggingface.co/datasets/",
    "correct the path or the id, or set HF_TOKEN if the data set is private",
    "where there is a network, run `hf download --repo-type dataset {repository} --local-dir FOLDER`, copy FOLDER to "
    "this machine, and name it as path",
)


@contextmanager
def translated(path: str, place: str, kind: HubKind) -> Iterator[None]:
    """Context manager that turns what the hub's client raises into recipe errors that blame ``place``."""
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

    repository, noun, nowhere = parts(path)[0], kind.noun, f"there is no {kind.here} {path!r}"
    try:
        yield
    except GatedRepoError as error:
        remedy = f"accept its terms at {kind.page}{repository}, and set HF_TOKEN"
        raise RecipeError(place, f"{nowhere}, and the {noun} {repository} of the Hugging Face hub is gated", remedy) from error
    except RevisionNotFoundError as error:
        remedy = "name a branch, a tag or a commit after the @"
        raise RecipeError(place, f"{nowhere}, and {repository} has no such revision on the Hugging Face hub", remedy) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise RecipeError(place, f"{nowhere}, and the Hugging Face hub has no {noun} {repository}", kind.correct) from error
    except LocalEntryNotFoundError as error:  # before EntryNotFoundError, of which it is one
        raise _not_here(repository, place, kind, nowhere) from error
    except EntryNotFoundError as error:
        problem = f"the {noun} {repository} of the Hugging Face hub lacks a file: {str(error).splitlines()[0]}"
        raise RecipeError(place, problem, kind.correct) from error
    except (OfflineModeIsEnabled, HfHubHTTPError, OSError) as error:
        raise _not_here(repository, place, kind, nowhere) from error


def _not_here(repository: str, place: str, kind: HubKind, nowhere: str) -> RecipeError:
    why = "is switched off (HF_HUB_OFFLINE)" if is_offline() else "cannot be reached"
    problem = f"{nowhere}, the {kind.noun} {repository} is not in the cache of this machine, and the Hugging Face hub {why}"
    return RecipeError(place, problem, download_remedy(repository, place, kind))


def download_remedy(repository: str, place: str, kind: HubKind) -> str:
    """Say how to bring a repository to a machine that cannot fetch it."""
    return kind.download.format(repository=repository, place=place)
