"""An append-only journal of records, with snapshots. It stays intact if its process is killed at any point.

What always holds:
* when :meth:`Journal.append` has returned, the record is in the journal; when it has raised, the record is not;
* only one process at a time writes a journal (it holds a lock on the folder); others may read it meanwhile;
* snapshot n is the state at the beginning of segment n; the last two snapshots and the segments since the older one are kept, so
  a damaged snapshot costs only time;
* a torn or damaged end is cut off and reported; damage with records after it is refused, since history would be lost
  silently;
* opening a journal changes none of its files; what a crash left behind is repaired by the first append or snapshot.

:mod:`asyncrl.buffers.journal.journal_files` reads the files back.
"""

import logging
import os
from pathlib import Path

from asyncrl.buffers.journal import frames, journal_files
from asyncrl.buffers.journal.disk import append_whole, disk_full
from asyncrl.buffers.journal.frames import Header
from asyncrl.buffers.journal.journal_files import DAMAGED, LOG, SNAPSHOT, Found, Head, Recovery
from asyncrl.core.errors import AsyncRLError
from asyncrl.core.files.durable import sync
from asyncrl.core.files.file_errors import naming
from asyncrl.core.files.file_lock import lock_within

logger = logging.getLogger(__name__)

_LOCK = "lock"


class JournalInUse(AsyncRLError):
    """Another process is writing the journal.

    Args:
        holder: id of that process.
        seconds: how long this process waited for it.
    """

    def __init__(self, folder: Path, holder: str, seconds: float) -> None:
        self.folder, self.holder, self.seconds = folder, holder, seconds
        super().__init__(
            f"{folder} is still being written by process {holder} after {seconds:g} s; "
            "a run has one driver at a time: end that process, or wait for it"
        )


class Journal:
    """The writer of a journal. :meth:`open` makes it; only one call may run at a time.

    Attributes:
        fsync: whether each append waits until its record is on the disk.
        bytes_since_snapshot: size on disk of the records that a recovery would replay now.
        identity: which run the journal belongs to, as new files say.
    """

    def __init__(self, folder: Path, lock: int, found: Found, *, fsync: bool, segment_bytes: int, identity: bytes) -> None:
        self._folder, self._lock, self.fsync, self._segment_bytes = folder, lock, fsync, segment_bytes
        self.identity = identity
        self._to_mend: Found | None = found
        self._number, self._end, self._position = found.segment, found.end, found.position
        self._file = -1
        if self._end:
            self._file = os.open(self._path(self._number, LOG), os.O_RDWR)
        self.bytes_since_snapshot = found.size

    @classmethod
    def open(
        cls, folder: Path, *, fsync: bool, segment_bytes: int, identity: bytes = b"", wait_s: float = 10.0
    ) -> tuple["Journal", Recovery]:
        """Open the journal in ``folder``, or begin a new one, and return it and its content. Makes missing folders.

        Existing files stay unchanged until the first :meth:`append` or :meth:`snapshot`.

        Args:
            fsync: whether each appended record survives a power cut; if not, it only survives the end of the process.
            segment_bytes: a new segment is begun before one would grow beyond this.
            identity: which run the journal belongs to; written into new files, and not compared with that in old ones.
            wait_s: how long to wait for another process to end, in seconds; one that was killed may take a moment.

        Raises:
            JournalInUse: another process is writing the journal.
            JournalDamaged, JournalGone, UnknownFormat: the files cannot be read; see these classes.
        """
        if not folder.is_dir():
            journal_files.find(folder)  # fails if files must be put back; then no new folder may be made there
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder / _LOCK, wait_s)
        try:
            found = journal_files.find(folder)
            return cls(folder, lock, found, fsync=fsync, segment_bytes=segment_bytes, identity=identity), found.recovery
        except BaseException:
            os.close(lock)
            raise

    def append(self, record: bytes) -> None:
        """Add a record.

        Raises:
            DiskFull: the record was not added, and the journal is unchanged; the same call may succeed later.
        """
        self._mend()
        frame = frames.pack(record)
        size = len(frame) + len(record)
        if self._file < 0 or self._end + size > self._segment_bytes:
            self._begin_segment(frame, record)
        else:
            self._end = append_whole(self._file, (frame, record), self._end, folder=self._folder, fsync=self.fsync)
        self._position += 1
        self.bytes_since_snapshot += size

    def _begin_segment(self, frame: bytes, record: bytes) -> None:
        """Begin a segment together with its first record, because a segment without a whole record does not count."""
        number = self._number + (self._file >= 0)
        header = frames.pack_header(Header(self._position, self.identity))
        path = self._path(number, LOG)
        file, end = self._create(path, (header, frame, record), fsync=self.fsync)
        self._close_segment()
        self._number, self._file, self._end = number, file, end
        if self.fsync:
            sync(self._folder)
        self._write_head()

    def snapshot(self, state: bytes) -> None:
        """Write ``state``, the result of all records so far, as a snapshot, and remove files that are no longer needed.

        Raises:
            DiskFull: no snapshot was written, and the journal is unchanged.
            OSError: the disk fails in another way; the journal is unchanged, and another snapshot may be tried.
        """
        self._mend()
        number = self._number + (self._file >= 0)
        header = frames.pack_header(Header(self._position, self.identity))
        making = self._path(number, f"{SNAPSHOT}.making")
        file, _ = self._create(making, (header, frames.pack(state), state), fsync=True)
        os.close(file)
        try:
            making.replace(self._path(number, SNAPSHOT))
        except OSError as error:
            making.unlink()  # else the next snapshot could not be made
            raise (disk_full(error, self._folder, 0) or error) from error
        sync(self._folder)
        self._close_segment()
        self._number, self._end = number, 0
        self.bytes_since_snapshot = 0
        self._write_head()
        self._prune()

    def _create(self, path: Path, parts: tuple[bytes, ...], *, fsync: bool) -> tuple[int, int]:
        """Make a file that holds ``parts``, and return the open file and its size. If that fails, there is no file."""
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            if full := disk_full(error, self._folder, sum(map(len, parts))):
                raise full from error
            raise
        try:
            return file, append_whole(file, parts, 0, folder=self._folder, fsync=fsync)
        except BaseException:
            os.close(file)
            path.unlink()
            raise

    def _prune(self) -> None:
        snapshots = journal_files.numbers(self._folder, SNAPSHOT)
        kept = snapshots[-2] if len(snapshots) > 1 else 0
        for suffix in (SNAPSHOT, LOG, DAMAGED):
            for number in journal_files.numbers(self._folder, suffix):
                if number < kept:
                    self._path(number, suffix).unlink()

    def _mend(self) -> None:
        """Before the first change, remove what the recovery did not use: new records follow those that it found."""
        found, self._to_mend = self._to_mend, None
        if found is None:
            return
        recovery = found.recovery
        if recovery.cut_segment:
            path = self._folder / recovery.cut_segment
            logger.warning("cut %d torn bytes off the end of %s", recovery.cut_bytes, path)
            if found.end:
                os.truncate(path, found.end)
            else:
                path.unlink()
        for name in recovery.damaged_snapshots:
            (self._folder / name).rename((self._folder / name).with_suffix(DAMAGED))
        for making in self._folder.glob("*.making"):
            making.unlink()
        self._write_head()

    def _write_head(self) -> None:
        """Write how far the journal has come. Its files exist by then, so the head never claims too much."""
        begun = self._number if self._end else self._number - 1
        try:
            Head(begun, max(journal_files.numbers(self._folder, SNAPSHOT), default=0)).write(self._folder)
            if self.fsync:
                sync(journal_files.head_of(self._folder))
                sync(self._folder.parent)  # the names of the head and of the journal's folder
        except OSError as error:
            # The old head is still true, and the journal is complete without it.
            logger.warning("%s could not be updated: %s", journal_files.head_of(self._folder), error)

    def _path(self, number: int, suffix: str) -> Path:
        return journal_files.path_of(self._folder, number, suffix)

    def _close_segment(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def close(self) -> None:
        """Release the journal, so that another process may write it. Nothing can be appended afterwards."""
        self._close_segment()
        os.close(self._lock)


def _lock(path: Path, wait_s: float) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        lock_within(file, wait_s)
    except BlockingIOError:
        holder = os.pread(file, 32, 0).decode(errors="replace") or "(unknown)"
        os.close(file)
        raise JournalInUse(path.parent, holder, wait_s) from None
    with naming(path):
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
    return file
