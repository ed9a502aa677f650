"""Runs that lie in an object store, brought to this machine: to be gone on with, or to be read.

What always holds: a run that is gone on with is fetched whole or not at all; reading one changes nothing of it.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from asyncrl.buffers.journal.journal_copy import give_up_payload
from asyncrl.buffers.journal.unchangeable_keys import Identity
from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.core.errors import RecipeError
from asyncrl.core.files.cache_folder import cache_folder
from asyncrl.core.files.file_formats import UnknownFormat
from asyncrl.core.recipe.buffer import AppendOnlyJournalConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.storage.address import is_address, joined, last_name, local_run_dir
from asyncrl.core.storage.errors import StorageError
from asyncrl.core.storage.fetched import fetched
from asyncrl.core.storage.storage import Listed, Storage, leads_outside
from asyncrl.run.buffer.tasks import make_task_stream
from asyncrl.run.folder.buffer_folder import journal_of
from asyncrl.run.folder.run_folder import RunFolder, claim
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.storage import stored_checkpoints
from asyncrl.run.storage.driver_mark import NAME as DRIVER
from asyncrl.run.storage.driver_mark import read_mark, wait_for_silence
from asyncrl.run.storage.known_copies import KnownCopies, read_known_copies, write_known_copies

_RECIPE = "recipe.yaml"
_WEIGHTS = (f"{stored_checkpoints.FOLDER}/", "model/")
"""What only those read who want the weights."""


@contextmanager
def resumed_run(place: str, note: Callable[[str], None], *, to_look: bool = False) -> Iterator[RunFolder]:
    """Context manager with the folder, on this machine, of a run that is resumed from ``place``, a path or an address.

    If it is refused in the context, nothing of what was fetched for it stays.

    Args:
        note: shows the user a line.
        to_look: it is not gone on with, so what is fetched is removed in any case.

    Raises:
        RecipeError: there is no such run, or none that can be resumed.
    """
    if not is_address(place):
        yield RunFolder.find(Path(place))
        return
    with ExitStack() as stack:
        parent = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncrl-resume-"))) if to_look else None
        folder, fetched = fetch_run(place, note, parent)
        try:
            yield folder
        except RecipeError:
            if fetched:
                shutil.rmtree(folder.path, ignore_errors=True)
            raise


def fetch_run(address: str, note: Callable[[str], None], parent: Path | None = None) -> tuple[RunFolder, bool]:
    """Bring the run at ``address`` to this machine, to go on with it from its newest whole checkpoint.

    If this machine has driven it last, its folder here has all that is there, and more: that one is returned.

    Args:
        note: shows the user a line.
        parent: where its folder is made; where its recipe says, if None.

    Returns:
        its folder, and whether it was fetched.

    Raises:
        RecipeError: there is no run, none that can be resumed, or another process drives it.
    """
    with _refusing():
        storage = Storage(address)
        recipe = _recipe(storage)
        wait_for_silence(storage, note)
        name = last_name(address)
        where = local_run_dir(str(recipe.get("run_dir", "runs"))) if parent is None else parent
        mark, last = read_mark(storage), RunFolder(where / name)
        if mark is not None and read_known_copies(last).drivers.get(address) == mark.token and last.recipe.is_file():
            note(f"This machine has driven the run last: it goes on in {last.path}")
            return last, False
        from_there = _checkpoint_storage(storage, recipe, name)
        versions = stored_checkpoints.stored_versions(from_there)
        if not versions:
            problem = f"there is no whole checkpoint at {from_there.address} yet"
            raise RecipeError("", problem, "go on with the folder of the machine that ran it, or launch the recipe anew")
        path = claim(where, name)
        try:
            note(f"Fetching the run, as it was at version {max(versions)}, from {address} to {path}")
            stored_checkpoints.fetch(from_there, path, max(versions))
            there = {name: each for name, each in storage.listing().items() if not name.startswith(_WEIGHTS) and name != DRIVER}
            _fetch(storage, there, path)
            folder = RunFolder(path)
            folder.logs.mkdir(exist_ok=True)
            _forget_how_it_ended(folder)
            if folder.database.parent != folder.path and not (recipe.get("tracking") or {}).get("uri"):
                folder.tracked_as.unlink(missing_ok=True)  # the database that knows it is on another machine
                if is_address(str(recipe.get("run_dir", ""))):
                    folder.own_database.touch()  # none was uploaded yet, and its metrics go where the run goes
            write_known_copies(folder, KnownCopies(name, unsettled=max(versions)))
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return folder, True


def _forget_how_it_ended(folder: RunFolder) -> None:
    """Remove a summary of steps that were lost: the journal and the totals of the checkpoint say what the run has."""
    with contextlib.suppress(OSError, ValueError, RecursionError, UnknownFormat):
        if Summary.read(folder.summary).status is Status.COMPLETED:
            return
    folder.summary.unlink(missing_ok=True)


def settle(recipe: Recipe, folder: RunFolder) -> None:
    """Have the journal of a run that was just fetched say that its trajectories, which were not, are to be generated again.

    Raises:
        AsyncRLError: the journal cannot be used.
    """
    known = read_known_copies(folder)
    if known.unsettled is None or not isinstance(recipe.buffer.journal, AppendOnlyJournalConfig):
        return
    tasks = make_task_stream(recipe)
    buffer = ReplayBuffer(recipe.batch, recipe.buffer, tasks, steps=recipe.steps, seed=recipe.seed)
    give_up_payload(journal_of(folder.path), recipe.buffer.journal, buffer, Identity.of(recipe, tasks), known.unsettled)
    write_known_copies(folder, msgspec.structs.replace(known, unsettled=None))


def copy_of(address: str, *, weights: bool = False) -> Path:
    """Return a folder with what the run at ``address`` has there now, to be read. What was fetched before is kept in the cache.

    Args:
        weights: with checkpoints and the trained model.

    Raises:
        RecipeError: there is no run, or the store refuses.
    """
    with _refusing():
        storage = Storage(address)
        _recipe(storage)
        here = cache_folder() / "copies" / hashlib.blake2b(address.encode(), digest_size=8).hexdigest() / last_name(address)
        there = {name: each for name, each in storage.listing().items() if weights or not name.startswith(_WEIGHTS)}
        whole = {f"{stored_checkpoints.FOLDER}/version-{version:06d}" for version in stored_checkpoints.stored_versions(storage)}
        there = {name: each for name, each in there.items() if _is_whole(name, whole) and name != DRIVER}
        new = {name: each for name, each in there.items() if _differs(here / name, each)}
        _fetch(storage, new, here)
        for path in here.rglob("[!.]*"):  # others may fetch the same now, under hidden names
            name = path.relative_to(here).as_posix()
            if path.is_file() and name not in there and (weights or not name.startswith(_WEIGHTS)):
                path.unlink(missing_ok=True)
        (here / "logs").mkdir(exist_ok=True)
        return here


def model_here(address: str) -> Path:
    """Return a folder with the model at ``address``, or with the run that is there.

    Raises:
        RecipeError: there is neither, or the store refuses.
    """
    with _refusing():
        if Storage(address).listing_of(_RECIPE):
            return copy_of(address, weights=True)
    return fetched(address, "")


def _is_whole(name: str, whole: set[str]) -> bool:
    if not name.startswith(f"{stored_checkpoints.FOLDER}/"):
        return True
    return any(name.startswith(f"{each}/") or name == f"{each}.json" for each in whole)


def _differs(file: Path, there: Listed) -> bool:
    try:
        found = file.stat()
    except OSError:
        return True
    return found.st_size != there.size or not there.written_ns or found.st_mtime_ns != there.written_ns


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise error.of_key("") from error


def _recipe(storage: Storage) -> Mapping[str, Any]:
    """The recipe of the run in the store, as plain values: the schema is not asked, which would import the user's classes."""
    content = storage.read(_RECIPE)
    try:
        found = None if content is None else yaml.safe_load(content)
    except yaml.YAMLError as error:
        raise RecipeError("", f"the recipe at {storage.address} cannot be read: {error}", "put it back from a copy") from error
    if not isinstance(found, dict):
        remedy = "name the address of a run, which `asyncrl launch` shows at its beginning"
        raise RecipeError("", f"there is no run at {storage.address}: it has no {_RECIPE}", remedy)
    return found


def _checkpoint_storage(storage: Storage, recipe: Mapping[str, Any], name: str) -> Storage:
    """Where the checkpoints of the run are: there, or where its recipe puts them."""
    elsewhere = (recipe.get("checkpoint") or {}).get("dir")
    return Storage(joined(elsewhere, name)) if isinstance(elsewhere, str) and is_address(elsewhere) else storage


def _fetch(storage: Storage, there: Mapping[str, Listed], to: Path) -> None:
    """Fetch objects into files that are as old as they are, by which it is seen later which of them are the same."""
    places = {name: to / name for name in there}
    if outside := [name for name in places if leads_outside(name)]:
        raise RecipeError("", f"there is an object {outside[0]!r} at {storage.address}", "see who wrote it; nothing was read")
    storage.fetch_all(places)
    for name, place in places.items():
        os.utime(place, ns=(there[name].written_ns, there[name].written_ns))
