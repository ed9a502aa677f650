"""An append-only journal of records, with snapshots, that survives being killed at any point.

What always holds:
* a record is in the journal, whole, exactly when :meth:`Journal.append` has returned; one that raised is not there;
* only one process at a time writes a journal (a lock on its folder says so); anybody may read it meanwhile;
* snapshot n is the state at the beginning of segment n; the last two snapshots and the segments since the older one are kept, so
  that a damaged snapshot costs nothing but time;
* a torn or damaged end is cut and reported; damage with records behind it is refused: that would be losing history silently.

A journal is a folder of segments ``00000001.log`` and snapshots ``00000001.snapshot``, in the format of :mod:`buffers.frames`.
"""

import fcntl
import logging
import os
import time
from pathlib import Path

import msgspec

from asyncrl.core.errors import AsyncRLError
from buffers import frames
from buffers.disk import append_whole, disk_full, sync_folder
from buffers.frames import Header

logger = logging.getLogger(__name__)

_LOG, _SNAPSHOT, _DAMAGED, _LOCK = ".log", ".snapshot", ".damaged", "lock"
_LOCK_RETRY_S = 0.05
"""How often a held lock is tried again: the kernel offers no wait for a lock that has a deadline."""
_READ_ATTEMPTS = 5
"""How often a reader begins anew because the writer removed what it was about to read."""


class JournalDamaged(AsyncRLError):
    """A journal cannot be read without losing something that was recorded.

    Args:
        file: the damaged or missing file.
        offset: where in it.
        problem: what is wrong.
    """

    def __init__(self, file: Path, offset: int, problem: str) -> None:
        self.file, self.offset, self.problem = file, offset, problem
        super().__init__(
            f"{file} is damaged at offset {offset:,}: {problem}; restore the file from a backup, or, to give up what was "
            f"recorded there and since, move it and all later files of {file.parent} away and resume again"
        )

    def __reduce__(self) -> tuple[type, tuple[Path, int, str]]:
        return type(self), (self.file, self.offset, self.problem)


class JournalInUse(AsyncRLError):
    """Another process writes the journal.

    Args:
        folder: of the journal.
        holder: id of that process.
        seconds: how long it was waited for.
    """

    def __init__(self, folder: Path, holder: str, seconds: float) -> None:
        self.folder, self.holder, self.seconds = folder, holder, seconds
        super().__init__(
            f"{folder} is being written by process {holder}, still after {seconds:g} s; "
            "a run has one driver at a time: end that process, or wait for it"
        )

    def __reduce__(self) -> tuple[type, tuple[Path, str, float]]:
        return type(self), (self.folder, self.holder, self.seconds)


class Recovery(msgspec.Struct, frozen=True):
    """What a journal holds.

    Attributes:
        snapshot: the newest one that is whole; None if none was taken.
        records: appended since then, oldest first.
        cut_bytes: of a torn or damaged end.
        cut_segment: where those were.
        damaged_snapshots: names of newer snapshots that could not be used.
        identity: what the journal said it was the journal of; None if it is empty.
    """

    snapshot: bytes | None
    records: list[bytes]
    cut_bytes: int = 0
    cut_segment: str = ""
    damaged_snapshots: tuple[str, ...] = ()
    identity: bytes | None = None


class _Found(msgspec.Struct):
    """A recovery, and where the journal goes on.

    Attributes:
        segment: number of the last segment; of the one to begin if that one is not there.
        end: where its last whole record ends; 0 if it is to be begun.
        position: records appended to the journal in all, ever.
        size: bytes of ``recovery.records`` on disk.
    """

    recovery: Recovery
    segment: int
    end: int
    position: int
    size: int


class Journal:
    """The writer. Made by :meth:`open`; one call at a time.

    Attributes:
        records_since_snapshot: how many records a recovery would replay now.
        bytes_since_snapshot: their size on disk.
    """

    def __init__(self, folder: Path, lock: int, found: _Found, *, fsync: bool, segment_bytes: int, identity: bytes) -> None:
        self._folder, self._lock, self._fsync, self._segment_bytes = folder, lock, fsync, segment_bytes
        self._identity = identity
        self._number, self._end, self._position = found.segment, found.end, found.position
        self._file = -1
        if self._end:
            self._file = os.open(self._path(self._number, _LOG), os.O_RDWR)
        self.records_since_snapshot = len(found.recovery.records)
        self.bytes_since_snapshot = found.size

    @classmethod
    def open(
        cls, folder: Path, *, fsync: bool, segment_bytes: int, identity: bytes = b"", wait_s: float = 10.0
    ) -> tuple["Journal", Recovery]:
        """Open or begin the journal in ``folder``, which is made if it is not there; and what it holds.

        Args:
            fsync: each record survives a power cut once it was appended; otherwise it survives the process.
            segment_bytes: a new segment is begun rather than letting one grow beyond this.
            identity: what this is the journal of; written into all that is begun from here on, and not compared with what it was.
            wait_s: how long to wait for another process to end; one that was killed may take a moment.

        Raises:
            JournalInUse: another process writes it.
            JournalDamaged: see there.
        """
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder / _LOCK, wait_s)
        try:
            found = _find(folder)
            _mend(folder, found)
            return cls(folder, lock, found, fsync=fsync, segment_bytes=segment_bytes, identity=identity), found.recovery
        except BaseException:
            os.close(lock)
            raise

    def append(self, record: bytes) -> None:
        """Add a record.

        Raises:
            DiskFull: it was not added, and the journal is as it was; the same call may succeed later.
        """
        frame = frames.pack(record)
        size = len(frame) + len(record)
        if self._file < 0 or self._end + size > self._segment_bytes:
            self._begin_segment(frame, record)
        else:
            self._end = append_whole(self._file, (frame, record), self._end, folder=self._folder, fsync=self._fsync)
        self._position += 1
        self.records_since_snapshot += 1
        self.bytes_since_snapshot += size

    def _begin_segment(self, frame: bytes, record: bytes) -> None:
        """Begin a segment with its first record: a segment without a whole record is none."""
        number = self._number + (self._file >= 0)
        header = frames.pack_header(Header(self._position, self._identity))
        path = self._path(number, _LOG)
        file, end = self._create(path, (header, frame, record), fsync=self._fsync)
        self._close_segment()
        self._number, self._file, self._end = number, file, end
        if self._fsync:
            sync_folder(self._folder)

    def snapshot(self, state: bytes) -> None:
        """Record ``state`` as what all records so far amount to, and remove what no recovery needs any more.

        Raises:
            DiskFull: there is none, and the journal is as it was.
        """
        number = self._number + (self._file >= 0)
        header = frames.pack_header(Header(self._position, self._identity))
        making = self._path(number, f"{_SNAPSHOT}.making")
        file, _ = self._create(making, (header, frames.pack(state), state), fsync=True)
        os.close(file)
        making.replace(self._path(number, _SNAPSHOT))
        sync_folder(self._folder)
        self._close_segment()
        self._number, self._end = number, 0
        self.records_since_snapshot = self.bytes_since_snapshot = 0
        self._prune()

    def _create(self, path: Path, parts: tuple[bytes, ...], *, fsync: bool) -> tuple[int, int]:
        """A new file with ``parts`` in it, open, and its size; or nothing."""
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
        snapshots = _numbers(self._folder, _SNAPSHOT)
        kept = snapshots[-2] if len(snapshots) > 1 else 0
        for suffix in (_SNAPSHOT, _LOG, _DAMAGED):
            for number in _numbers(self._folder, suffix):
                if number < kept:
                    self._path(number, suffix).unlink()

    def _path(self, number: int, suffix: str) -> Path:
        return _path(self._folder, number, suffix)

    def _close_segment(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def close(self) -> None:
        """Let others write the journal. Nothing can be appended any more."""
        self._close_segment()
        os.close(self._lock)


def read_journal(folder: Path) -> Recovery:
    """What the journal in ``folder`` holds. Changes nothing, and does not mind that a process is writing it.

    Raises:
        FileNotFoundError: there is no journal.
        JournalDamaged: see there.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no journal")
    for _ in range(_READ_ATTEMPTS):
        before = _listing(folder)
        try:
            return _find(folder).recovery
        except (JournalDamaged, FileNotFoundError):
            if _listing(folder) == before:
                raise
            # The writer took a snapshot and removed what it made superfluous while we were reading.
    return _find(folder).recovery


def _lock(path: Path, wait_s: float) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = os.pread(file, 32, 0).decode(errors="replace") or "(unknown)"
                os.close(file)
                raise JournalInUse(path.parent, holder, wait_s) from None
            time.sleep(_LOCK_RETRY_S)
    os.ftruncate(file, 0)
    os.pwrite(file, str(os.getpid()).encode(), 0)
    return file


def _path(folder: Path, number: int, suffix: str) -> Path:
    return folder / f"{number:08d}{suffix}"


def _numbers(folder: Path, suffix: str) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob(f"*{suffix}") if path.stem.isdecimal())


def _listing(folder: Path) -> tuple[list[int], list[int]]:
    return _numbers(folder, _SNAPSHOT), _numbers(folder, _LOG)


def _find(folder: Path) -> _Found:
    snapshots, segments = _listing(folder)
    damaged: list[str] = []
    for number in reversed(snapshots):
        path = _path(folder, number, _SNAPSHOT)
        header, states, damage = frames.read(path.read_bytes())
        if header is not None and len(states) == 1 and damage is None:
            found = _read_segments(folder, number, header, [n for n in segments if n >= number])
            found.recovery = msgspec.structs.replace(found.recovery, snapshot=states[0], damaged_snapshots=tuple(damaged))
            return found
        logger.warning("snapshot %s is damaged and is not used", path)
        damaged.append(path.name)
    found = _read_segments(folder, 1, Header(0, None), segments)
    found.recovery = msgspec.structs.replace(found.recovery, damaged_snapshots=tuple(damaged))
    return found


def _read_segments(folder: Path, first: int, before: Header, segments: list[int]) -> _Found:
    """The records of ``segments``, which must go on without a gap where ``before`` says that the journal stood."""
    records: list[bytes] = []
    position, identity, size = before.position, before.identity, 0
    for number in range(first, max(segments, default=first) + 1):
        path = _path(folder, number, _LOG)
        if number not in segments:
            if not segments:
                break
            raise JournalDamaged(path, 0, "the file is not there, and later ones are")
        data = path.read_bytes()
        header, found, damage = frames.read(data)
        last = number == segments[-1]
        if header is not None and header.position != position:
            raise JournalDamaged(path, 0, f"it begins with record {header.position:,}, not with record {position:,} that is next")
        position += len(found)
        records += found
        if header is not None:
            identity = header.identity
        if damage is not None and (damage.records_behind or not last):
            raise JournalDamaged(path, damage.offset, "there is no whole record, but there are some behind it")
        size += len(data)
        if last:
            end = len(data) if damage is None else damage.offset
            if not found:
                end = 0  # begun, and not even its first record was written
            cut = len(data) - end
            recovery = Recovery(None, records, cut, "" if end == len(data) > 0 else path.name, identity=identity)
            return _Found(recovery, number, end, position, size - cut)
    return _Found(Recovery(None, records, identity=identity), first, 0, position, size)


def _mend(folder: Path, found: _Found) -> None:
    """Remove from the folder what recovery left out, so that the journal can go on."""
    recovery = found.recovery
    if recovery.cut_segment:
        path = folder / recovery.cut_segment
        logger.warning("cut %d torn bytes off the end of %s", recovery.cut_bytes, path)
        if found.end:
            os.truncate(path, found.end)
        else:
            path.unlink()
    for name in recovery.damaged_snapshots:
        (folder / name).rename((folder / name).with_suffix(_DAMAGED))
    for making in folder.glob("*.making"):
        making.unlink()
