"""What lies below one address of an object store: objects are written whole, read, listed and removed.

What always holds: an object is visible only once all of it is there: stores complete an upload in several parts by a last
request, which a process that was killed has not sent; in a folder (``file://``) it is written under a hidden name, and renamed.
Every method raises a :class:`StorageError` if the store refuses.
"""

import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.errors import DeadlineExceeded
from asyncrl.core.files.file_errors import naming
from asyncrl.core.storage.address import file_system, joined
from asyncrl.core.storage.errors import NoSuchObject, StorageError, family, translated

FETCH_S = 3600.0
"""How long an object may take to be fetched, once those before it are."""
_THREADS = 8
_DRAFT = re.compile(r"/\.[^/]+\.\d+-[0-9a-f]{8}$")
_BLOCK = 8 << 20
"""Bytes that are read or written at once; clients send parts of about this size side by side."""


class StoredObject(msgspec.Struct, frozen=True):
    """An object as it was written: its name below the address, its size in bytes, and its CRC-32."""

    name: str
    size: int
    checksum: int


class Listed(msgspec.Struct, frozen=True):
    """An object in a listing: its size in bytes, and when it was written, in nanoseconds; 0 where the store does not say."""

    size: int
    written_ns: int


def _draft_of(name: str) -> str:
    """A name for a file while it is written, which :data:`_DRAFT` finds."""
    return f".{name}.{os.getpid()}-{secrets.token_hex(4)}"


def leads_outside(name: str) -> bool:
    """Whether a file of this name below a folder would not be in the folder."""
    return ".." in Path(name).parts or Path(name).is_absolute()


class Storage:
    """The objects below ``address``. Several threads may use it at once.

    Raises:
        StorageError: there is no such kind of store.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._files, self._root = file_system(address)
        self._in_folder = family(address) == "file"

    def put(self, name: str, source: Path, meanwhile: Callable[[], None] = lambda: None) -> StoredObject:
        """Write a file as object ``name``, in several parts side by side if it is large.

        Args:
            meanwhile: called after each block.

        Raises:
            OSError: the file cannot be read.
        """
        size = checksum = 0
        with source.open("rb") as file, translated(joined(self.address, name)), self._created(name) as out:
            while block := _read(file, source):
                size += len(block)
                checksum = zlib.crc32(block, checksum)
                out.write(block)
                meanwhile()
        return StoredObject(name, size, checksum)

    def put_bytes(self, name: str, content: bytes) -> None:
        """Write ``content`` as object ``name``."""
        with translated(joined(self.address, name)), self._created(name) as out:
            out.write(content)

    @contextmanager
    def _created(self, name: str) -> Iterator[Any]:
        """Open object ``name`` to be written; if that is given up, nothing of it is there."""
        path = written = self._path(name)
        if self._in_folder:
            folder, _, last = path.rpartition("/")
            self._files.create_dir(folder, recursive=True)
            written = f"{folder}/{_draft_of(last)}"
        try:
            with self._files.open_output_stream(written) as out:
                yield out
            if self._in_folder:
                self._files.move(written, path)
        except BaseException:
            with suppress(OSError):  # a stream that is closed early is an object, too
                self._files.delete_file(written)
            raise

    def read(self, name: str) -> bytes | None:
        """Return the content of object ``name``; None if there is none."""
        try:
            with translated(joined(self.address, name)), self._files.open_input_stream(self._path(name)) as found:
                return bytes(found.read())
        except NoSuchObject:
            return None

    def fetch(self, name: str, to: Path) -> StoredObject:
        """Read object ``name`` into the file ``to``, whose folder is made. The file is whole: what it replaces stays until then.

        Raises:
            NoSuchObject: there is none.
            OSError: the file cannot be written.
        """
        to.parent.mkdir(parents=True, exist_ok=True)
        draft = to.with_name(_draft_of(to.name))  # others may fetch the same
        size = checksum = 0
        try:
            with naming(to), draft.open("wb") as file:
                with translated(joined(self.address, name)):
                    found = self._files.open_input_stream(self._path(name))
                with found:
                    while block := self._block(found, name):
                        size += len(block)
                        checksum = zlib.crc32(block, checksum)
                        file.write(block)
            draft.replace(to)
        finally:
            draft.unlink(missing_ok=True)
        return StoredObject(name, size, checksum)

    def fetch_all(self, places: Mapping[str, Path]) -> dict[str, StoredObject]:
        """Read objects into files, several side by side. Once one has failed, no further one is begun.

        Raises:
            DeadlineExceeded: one did not come for :data:`FETCH_S`.
        """
        threads = ThreadPoolExecutor(_THREADS, "fetching")
        try:
            fetching = {name: threads.submit(self.fetch, name, to) for name, to in places.items()}
            return {name: self._fetched(name, reading) for name, reading in fetching.items()}
        finally:
            threads.shutdown(cancel_futures=True)

    def _fetched(self, name: str, reading: "Future[StoredObject]") -> StoredObject:
        try:
            return reading.result(FETCH_S)
        except TimeoutError as error:
            remedy = "see to the network, and try again"
            raise DeadlineExceeded("the command", joined(self.address, name), FETCH_S, remedy) from error

    def _block(self, found: Any, name: str) -> bytes:
        with translated(joined(self.address, name)):
            return bytes(found.read(_BLOCK))

    def listing(self, under: str = "") -> dict[str, Listed]:
        """Return all objects below the address, or below ``under`` in it, by name."""
        from pyarrow.fs import FileSelector, FileType

        with translated(joined(self.address, under) if under else self.address):
            selector = FileSelector(self._path(under) if under else self._root, recursive=True, allow_not_found=True)
            found = self._files.get_file_info(selector)
        return {
            each.path[len(self._root) + 1 :]: Listed(each.size or 0, each.mtime_ns or 0)
            for each in found
            if each.type is FileType.File and not (self._in_folder and _DRAFT.search(each.path))
        }

    def listing_of(self, name: str) -> dict[str, Listed]:
        """Return object ``name`` as a listing has it; nothing if there is none."""
        from pyarrow.fs import FileType

        with translated(joined(self.address, name)):
            found = self._files.get_file_info(self._path(name))
        return {name: Listed(found.size or 0, found.mtime_ns or 0)} if found.type is FileType.File else {}

    def remove(self, name: str) -> None:
        """Remove object ``name``, if there is one."""
        try:
            with translated(joined(self.address, name)):
                self._files.delete_file(self._path(name))
        except NoSuchObject:
            pass

    def remove_all(self, under: str) -> None:
        """Remove all objects below ``under``, which need not exist."""
        try:
            with translated(joined(self.address, under)):
                self._files.delete_dir(self._path(under))
        except NoSuchObject:
            pass

    def check_writable(self) -> None:
        """Write an object, read it, list it, and remove it.

        Raises:
            StorageError: one of these is refused.
        """
        folder, content = f".asyncrl-{secrets.token_hex(8)}", b"asyncrl was here"
        name = f"{folder}/written"
        try:
            self.put_bytes(name, content)
            seen = self.read(name) == content and name in self.listing(folder)
            self.remove_all(folder)
        except StorageError as error:
            raise StorageError(self.address, error.problem, error.remedy) from error
        if not seen:
            problem = "what was written a moment ago is not there"
            raise StorageError(self.address, problem, "name a store that shows what was written at once")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def _read(file: Any, source: Path) -> bytes:
    """Read a block; an error of the disk is raised as one of the file, not of the store."""
    try:
        return bytes(file.read(_BLOCK))
    except OSError as error:
        raise StorageError(str(source), f"it cannot be read ({error.strerror})", "see to the disk") from error
