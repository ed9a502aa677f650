"""The versioned folder through which the ``disk`` transport passes weights on.

Each version has a folder of its own, with a file of each rank and a manifest. What always holds: a version's folder has its name
only once all its files and the manifest are on disk; a file that holds changed blocks alone names the version that they change,
and that one is there as long as the newest two versions, or one that is still read, need it.
"""

import os
import shutil
import time
from collections.abc import Collection
from pathlib import Path

import msgspec

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.files.durable import sync
from asyncrl.core.files.file_errors import naming
from asyncrl.core.ids import PolicyVersion

_MANIFEST = "manifest.json"
_LOOK_AGAIN_S = 0.1


class StoredFile(msgspec.Struct, frozen=True):
    """One rank's file of a version.

    Attributes:
        name: within the version's folder.
        size: bytes of the rank's file.
        base: the version whose file it changes; None if it is whole.
        stored: bytes on disk.
    """

    name: str
    size: int
    base: PolicyVersion | None
    stored: int


class Manifest(msgspec.Struct, frozen=True):
    """What a version's folder holds: the files in the order of the publication, whose fingerprint proves them."""

    version: PolicyVersion
    fingerprint: int
    files: tuple[StoredFile, ...]


class StoredVersions:
    """The versions in ``folder``, which all nodes see under the same path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, version: PolicyVersion) -> Path:
        """The folder of a version."""
        return self.folder / f"version-{version:06d}"

    def new(self, version: PolicyVersion) -> Path:
        """The folder in which a version is written; made if need be. A resumed run writes the same version again."""
        path = self.folder / f".version-{version:06d}.new"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def complete(self, manifest: Manifest) -> None:
        """Give the folder of a version its name, once all its files are written.

        Versions that are not older are removed: they are of the run that this one resumes.
        """
        new, path = self.new(manifest.version), self.path(manifest.version)
        with naming(new / _MANIFEST), (new / _MANIFEST).open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        sync(new)
        for version in self.versions():
            if version >= manifest.version:
                shutil.rmtree(self.path(version))
        new.rename(path)
        sync(self.folder)

    def manifest(self, version: PolicyVersion) -> Manifest:
        """Read the manifest of a version.

        Raises:
            ComponentFailed: the version is not there.
        """
        file = self.path(version) / _MANIFEST
        try:
            return msgspec.json.decode(file.read_bytes(), type=Manifest)
        except (OSError, msgspec.DecodeError) as error:
            raise ComponentFailed(
                f"{file} cannot be read ({error}); weights.folder must be on a file system that all nodes share"
            ) from error

    def wait_for(self, version: PolicyVersion, seconds: float) -> Manifest:
        """Read the manifest of a version that is whole, as soon as this node sees it: file systems of networks may take a while.

        Raises:
            ComponentFailed: this node does not see the version within ``seconds``.
        """
        ends = time.monotonic() + seconds
        while True:
            try:
                return self.manifest(version)
            except ComponentFailed:
                if time.monotonic() >= ends:
                    raise
            time.sleep(_LOOK_AGAIN_S)

    def is_whole(self, version: PolicyVersion) -> bool:
        """Whether this node sees the version with all its files."""
        return (self.path(version) / _MANIFEST).exists()

    def has(self, version: PolicyVersion, seconds: float) -> bool:
        """Whether this node sees a version that is whole and as new as ``version``, within ``seconds``."""
        ends = time.monotonic() + seconds
        while not any(seen >= version for seen in self.versions()):
            if time.monotonic() >= ends:
                return False
            time.sleep(_LOOK_AGAIN_S)
        return True

    def versions(self) -> list[PolicyVersion]:
        """The versions that are whole, the oldest first."""
        numbers = (path.name.removeprefix("version-") for path in self.folder.glob("version-*"))
        return [PolicyVersion(number) for number in sorted(int(number) for number in numbers if number.isdigit())]

    def chain(self, version: PolicyVersion, number: int, known: PolicyVersion | None) -> list[tuple[Path, StoredFile]]:
        """Return the files to read, in order, to get a rank's file of ``version``.

        Args:
            number: the number of the rank's file in the publication.
            known: the version of the file that the reader has already, if any; without it, the first file is whole.
        """
        files: list[tuple[Path, StoredFile]] = []
        at: PolicyVersion | None = version
        while at is not None and at != known:
            file = self.manifest(at).files[number]
            files.append((self.path(at) / file.name, file))
            at = file.base
        return files[::-1]

    def prune(self, read: Collection[PolicyVersion]) -> None:
        """Remove what nobody needs: all before the newest two, before ``read``, and before what these are changes of."""
        there = self.versions()
        needed = [*there[-2:], *(version for version in there if version in read)]
        oldest = min((self._oldest_of(version) for version in needed), default=PolicyVersion(0))
        for version in there:
            if version < oldest:
                shutil.rmtree(self.path(version), ignore_errors=True)

    def _oldest_of(self, version: PolicyVersion) -> PolicyVersion:
        """The oldest version that is needed to read this one."""
        oldest, waiting = version, [version]
        while waiting:
            bases = {file.base for file in self.manifest(waiting.pop()).files if file.base is not None}
            waiting += bases
            oldest = min(oldest, *bases) if bases else oldest
        return oldest
