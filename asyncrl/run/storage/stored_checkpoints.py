"""The checkpoints of a run in an object store, each with what else a resume needs: totals, and a copy of the journal.

What always holds: a checkpoint counts only once its manifest, ``checkpoints/version-NNNNNN.manifest.json``, is there, which is
written last and removed first; so what a killed upload has left is never taken for one.
"""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.model_copies import copy_folder
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.storage.address import joined
from asyncrl.core.storage.storage import Storage, StoredObject, leads_outside
from asyncrl.learners.checkpointing import checkpoints

FOLDER = "checkpoints"
FORMAT = 1
_MANIFEST, _JOURNAL, _TOTALS = ".manifest.json", ".journal", ".json"


class UploadManifest(msgspec.Struct, frozen=True):
    """All objects of a checkpoint, by their names below the run's address. Its totals are not among them: they change later."""

    objects: tuple[StoredObject, ...]
    format: int = FORMAT


def journal_copy_of(checkpoint: Path) -> Path:
    """The folder, beside a checkpoint of the run folder, with the copy of the journal that goes with it."""
    return checkpoint.with_name(f"{checkpoint.name}{_JOURNAL}")


def uploadable(folder: Path) -> list[PolicyVersion]:
    """The versions of the checkpoints in ``folder`` that have all that a resume elsewhere needs, newest first."""
    versions = sorted(checkpoints.versions(folder), reverse=True)
    return [version for version in versions if journal_copy_of(checkpoints.path_of(folder, version)).is_dir()]


def stored_versions(storage: Storage) -> list[PolicyVersion]:
    """The versions of the checkpoints in the store that are whole, in no order."""
    names = (name.partition("/")[2] for name in storage.listing(FOLDER))
    found = (checkpoints.version_of(Path(name.removesuffix(_MANIFEST))) for name in names if name.endswith(_MANIFEST))
    return [version for version in found if version is not None]


def upload(storage: Storage, folder: Path, version: PolicyVersion, meanwhile: Callable[[], None]) -> None:
    """Write the checkpoint of ``version`` in ``folder`` to the store, its manifest last.

    The run may remove the checkpoint meanwhile: its files are held by links of their own. One of this version that is there is of
    steps that the run has done again, and is replaced.

    Args:
        meanwhile: called now and then; it must not raise.

    Raises:
        FileNotFoundError: it has been removed before.
        StorageError: the store refuses.
    """
    checkpoint = checkpoints.path_of(folder, version)
    held = folder / f".{checkpoint.name}.uploading"
    shutil.rmtree(held, ignore_errors=True)
    try:
        for part in (checkpoint, journal_copy_of(checkpoint)):
            copy_folder(part, held / part.name, copy=_hold)
        storage.remove(f"{FOLDER}/{checkpoint.name}{_MANIFEST}")
        storage.put(f"{FOLDER}/{checkpoint.name}{_TOTALS}", checkpoint.with_suffix(_TOTALS))
        files = sorted(path for path in held.rglob("*") if path.is_file())
        names = (f"{FOLDER}/{path.relative_to(held).as_posix()}" for path in files)
        objects = tuple(storage.put(name, path, meanwhile) for name, path in zip(names, files, strict=True))
        storage.put_bytes(f"{FOLDER}/{checkpoint.name}{_MANIFEST}", msgspec.json.encode(UploadManifest(objects)))
    finally:
        shutil.rmtree(held, ignore_errors=True)


def _hold(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def prune(storage: Storage, keep: int, newest: PolicyVersion | None = None) -> None:
    """Remove all but the newest ``keep`` whole checkpoints, and what killed uploads of older ones have left.

    Args:
        newest: the run's newest checkpoint, if it is whole in the store: those after it are of steps that the run does again.
    """
    names = storage.listing(FOLDER)
    whole = sorted(version for version in stored_versions(storage) if newest is None or version <= newest)
    kept = whole[-keep:]
    there = {version for name in names if (version := _version_in(name)) is not None}
    for version in sorted(there - set(kept)):
        if newest is None and kept and version > kept[-1]:
            continue  # it is being uploaded, or will be again
        stem = checkpoints.path_of(Path(FOLDER), version).as_posix()
        storage.remove(f"{stem}{_MANIFEST}")
        for folder in (stem, f"{stem}{_JOURNAL}"):
            if any(name.startswith(f"{folder}/") for name in names):
                storage.remove_all(folder)
        storage.remove(f"{stem}{_TOTALS}")


def _version_in(name: str) -> PolicyVersion | None:
    """The version of the checkpoint that an object belongs to."""
    return checkpoints.version_of(Path(name.split("/")[1].partition(".")[0]))


def fetch(storage: Storage, run: Path, version: PolicyVersion) -> None:
    """Read the checkpoint of ``version`` into the run folder ``run``, and its copy of the journal to where the buffer has it.

    Raises:
        RecipeError: an object is not what was written.
        StorageError: the store refuses.
        OSError: the disk refuses.
    """
    checkpoint = checkpoints.path_of(run / FOLDER, version)
    name = f"{FOLDER}/{checkpoint.name}{_MANIFEST}"
    remedy = f"remove {joined(storage.address, name)}, so that the checkpoint before it is used, or launch a new run"
    try:
        manifest = msgspec.json.decode(storage.read(name) or b"", type=UploadManifest)
    except ValueError as error:
        raise RecipeError("", f"{joined(storage.address, name)} is no manifest ({error})", remedy) from error
    if manifest.format != FORMAT:
        problem = f"{joined(storage.address, name)} has format {manifest.format}, and this version of asyncrl reads {FORMAT}"
        raise RecipeError("", problem, "resume it with the asyncrl that wrote it")
    partial = checkpoints.partial_of(checkpoint)
    places = {each.name: _place(each.name, checkpoint, partial, run) for each in manifest.objects}
    found = storage.fetch_all({**places, f"{FOLDER}/{checkpoint.name}{_TOTALS}": checkpoint.with_suffix(_TOTALS)})
    for expected in manifest.objects:
        if found[expected.name] != expected:
            raise RecipeError("", f"{joined(storage.address, expected.name)} is damaged: it is not what was written", remedy)
    partial.rename(checkpoint)


def _place(name: str, checkpoint: Path, partial: Path, run: Path) -> Path:
    """Where an object of a checkpoint belongs in the run folder."""
    folder, _, rest = name.removeprefix(f"{FOLDER}/").partition("/")
    if not rest or leads_outside(rest):
        raise RecipeError("", f"a manifest names the object {name!r}", "see who wrote it; nothing of it was read")
    return (partial if folder == checkpoint.name else run / "buffer") / rest


def totals_changed(folder: Path, known: Iterable[PolicyVersion]) -> dict[PolicyVersion, Path]:
    """The files of the totals of those checkpoints in ``folder`` that are ``known`` to be in the store."""
    files = {version: checkpoints.path_of(folder, version).with_suffix(_TOTALS) for version in known}
    return {version: file for version, file in files.items() if file.is_file()}
