"""A repository for models on the Hugging Face hub, and what is sent there.

What always holds: only what asyncrl pushed is replaced, in one commit; what is meant to be private never goes into a public
repository; each wait for the hub has a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import asyncrl
from asyncrl.core.deadline import deadline
from asyncrl.core.errors import ComponentFailed, RecipeError
from asyncrl.core.files.hub import is_offline
from asyncrl.core.text import pluralize
from asyncrl.envs.hosting.threads import run_in_daemon_thread

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

T = TypeVar("T")

PLACE = "HUB_ID"
TAG = "asyncrl"
"""A model with this tag is one that was pushed before."""
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN to a token that may write"
TO_FOLDER = "or look at what would be pushed with --to FOLDER"
ANSWER_S = 60.0
"""How long the hub may take to say whether a model may be pushed."""
LEAST_RATE = 100_000
"""Bytes a second that the upload may take its time for, beside :data:`ANSWER_S`."""
_MADE_BY_HUB = {".gitattributes"}


def check_id(hub_id: str) -> None:
    """Refuse what is no id of a model on the hub.

    Raises:
        RecipeError: it is not ``OWNER/NAME``, or the hub's client says that there can be no such name.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined] # which its documentation lists

    remedy = "name it OWNER/NAME, with letters, digits, `-`, `_` and `.`, such as my-account/calculator-0.6b"
    if hub_id.count("/") != 1:
        raise RecipeError(PLACE, f"{hub_id!r} does not name an owner and a model", remedy)
    try:
        validate_repo_id(hub_id)
    except HFValidationError as error:
        raise RecipeError(PLACE, f"{hub_id!r} is no id of a model: {error}", remedy) from error


class HubRepository:
    """The repository ``hub_id``, which :meth:`open` makes unless it is there."""

    def __init__(self, hub_id: str, *, private: bool) -> None:
        from huggingface_hub import HfApi

        check_id(hub_id)
        self.hub_id, self._private = hub_id, private
        self._api = HfApi(library_name="asyncrl", library_version=asyncrl.__version__)

    def open(self) -> None:
        """Make the repository, or see that what is in it may be replaced.

        Raises:
            RecipeError: there is no network or no token, the hub refuses, or the repository holds something else.
            DeadlineExceeded: the hub does not answer.
        """
        from huggingface_hub import get_token

        if is_offline():
            remedy = f"unset HF_HUB_OFFLINE where there is a network, {TO_FOLDER}"
            raise RecipeError(PLACE, "the Hugging Face hub is switched off (HF_HUB_OFFLINE)", remedy)
        if get_token() is None:
            raise RecipeError(PLACE, "there is no token of the Hugging Face hub on this machine", f"{LOG_IN}, {TO_FOLDER}")
        self._asked(self._make_or_check, "whether the model may be pushed", ANSWER_S)

    def upload(self, folder: Path, message: str) -> str:
        """Send all files of a folder in one commit, which takes away what else is there, and return the commit's address.

        Raises:
            RecipeError: the hub refuses.
            ComponentFailed: the connection breaks, or the hub fails; nothing has changed in the repository.
            DeadlineExceeded: it took much longer than a slow connection would.
        """
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())

        def send() -> str:
            # Not the client's upload_folder, which makes several commits where files are large.
            commit = self._api.create_commit(self.hub_id, self._operations(folder), commit_message=message)
            return str(commit.commit_url)

        return self._asked(send, "the upload", ANSWER_S + size / LEAST_RATE)

    def _operations(self, folder: Path) -> list[CommitOperationAdd | CommitOperationDelete]:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        files = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}
        gone = sorted(set(self._api.list_repo_files(self.hub_id)) - files.keys() - _MADE_BY_HUB)
        added = [CommitOperationAdd(name, str(file)) for name, file in files.items()]
        return [*added, *map(CommitOperationDelete, gone)]

    def _make_or_check(self) -> None:
        from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

        try:
            self._api.create_repo(self.hub_id, private=self._private or None)
        except HfHubHTTPError as error:
            if error.response.status_code not in (403, 409):  # a token for this repository alone may make none
                raise
            try:
                there = self._api.model_info(self.hub_id)
            except RepositoryNotFoundError:
                raise error from None
            self._check_replaceable(there)

    def _check_replaceable(self, there: Any) -> None:
        if self._private and not there.private:
            remedy = "make it private in its settings on the hub, name another, or leave --private out"
            raise RecipeError("--private", f"{self.hub_id} is there already, and public", remedy)
        held = sorted({each.rfilename for each in there.siblings or ()} - _MADE_BY_HUB)
        if held and TAG not in (there.tags or ()):
            what = f"{pluralize(len(held), 'file')} such as {held[0]}"
            problem = f"{self.hub_id} is there already, with {what}, and asyncrl did not push it"
            raise RecipeError(PLACE, problem, "name another, or delete that one on the hub")

    def _asked(self, call: Callable[[], T], what: str, seconds: float) -> T:
        async def answer() -> T:
            remedy = "see that the network is up, and try again"
            async with deadline(seconds, waiter="asyncrl push", owner=f"the Hugging Face hub ({what})", remedy=remedy):
                return await run_in_daemon_thread(call, "talking to the hub")

        with _translated(self.hub_id):
            return asyncio.run(answer())


@contextmanager
def _translated(hub_id: str) -> Iterator[None]:
    """Context manager that turns what the hub's client raises into errors with a remedy."""
    from huggingface_hub.errors import HfHubHTTPError

    owner = hub_id.partition("/")[0]
    try:
        yield
    except HfHubHTTPError as error:
        said = error.server_message or str(error).splitlines()[0]
        match error.response.status_code:
            case 401:
                raise RecipeError(PLACE, f"the Hugging Face hub does not know the token ({said})", LOG_IN) from error
            case 403 | 404:
                problem = f"the token may not write models of {owner!r} ({said})"
                remedy = "name your own account or an organisation that you may write to, with a token that has write access"
                raise RecipeError(PLACE, problem, remedy) from error
            case code if code < 500:
                problem = f"the Hugging Face hub refuses {hub_id} ({code}: {said})"
                raise RecipeError(PLACE, problem, "correct what it says, or name another id") from error
            case code:
                problem = f"the Hugging Face hub failed ({code}: {said}); nothing has changed there; try again later"
                raise ComponentFailed(problem) from error
    except ValueError as error:  # the client: the hub refuses the card, or answers with nonsense
        raise ComponentFailed(f"the Hugging Face hub did not take {hub_id}: {error}; try again, or report it as a bug") from error
    except Exception as error:
        if not _is_of_transport(error):
            raise
        problem = f"the Hugging Face hub cannot be reached ({error})"
        raise RecipeError(PLACE, problem, f"see that there is a network (HF_ENDPOINT, HTTPS_PROXY), {TO_FOLDER}") from error


def _is_of_transport(error: Exception) -> bool:
    """Whether the network is to blame; what the hub's client sends by has no base class that all its releases share."""
    return isinstance(error, ConnectionError) or type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore")
