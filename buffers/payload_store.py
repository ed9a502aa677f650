"""Encoded trajectories in segment files: appended by the generators, read by the learner's ranks, freed by the buffer.

What always holds:
* a segment is written by one writer only, from beginning to end, and its name is never used again;
* the bytes of a :class:`PayloadRef` are written completely before the reference is returned, and never change
  afterwards;
* every read checks the bytes, so lost or damaged bytes raise an error and never become data;
* a writer locks the segment that it is writing until it begins another, ends or dies; only then may the segment be removed.

Several threads may use an object of each of the three classes at once.
"""

import errno
import fcntl
import logging
import os
import secrets
import threading
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from pathlib import Path

from asyncrl.buffers.journal.disk import PAGE, append_whole, disk_full, punch_hole
from asyncrl.buffers.journal.extents import Extents
from asyncrl.core.episode_records import PayloadRef
from asyncrl.core.errors import AsyncRLError
from asyncrl.core.files.durable import sync
from asyncrl.core.files.file_errors import naming

logger = logging.getLogger(__name__)

SUFFIX = ".rows"
_OPEN_SEGMENTS = 16
"""Most segments that a reader keeps open."""
_READ_BYTES = 8 << 20
"""Neighbouring payloads are read together up to this many bytes."""


class PayloadLost(AsyncRLError):
    """Payload is gone or damaged.

    Args:
        segment: path of the segment file.
        offset: where the payload should begin in the segment, in bytes.
    """

    def __init__(self, segment: Path, offset: int, problem: str) -> None:
        self.segment, self.offset, self.problem = segment, offset, problem
        super().__init__(
            f"payload at offset {offset:,} of {segment}: {problem}; "
            "bring the file back from a copy, or resume the run (asyncrl launch --resume RUN), which generates again what is not "
            "trained yet"
        )


class PayloadGone(AsyncRLError):
    """The folder of a whole shard is missing, and payload in it is needed.

    Args:
        trajectories: number of the trajectories in it that are needed.
        size: size of these trajectories, in bytes.
    """

    def __init__(self, folder: Path, trajectories: int, size: int) -> None:
        self.folder, self.trajectories, self.size = folder, trajectories, size
        super().__init__(
            f"{folder} is not there, and the run's journal needs {trajectories:,} trajectories ({size:,} bytes) that were in it; "
            "put it back and resume again, or, to generate again what is not trained yet, make an empty folder "
            f"(mkdir -p {folder}) and resume again"
        )


def check_there(folder: Path, refs: Collection[PayloadRef]) -> None:
    """Raise ``PayloadGone`` if the ``folder`` of a shard is missing and ``refs`` in it are needed."""
    if refs and not folder.is_dir():
        raise PayloadGone(folder, len(refs), sum(ref.size for ref in refs))


class PayloadWriter:
    """Appends payload to segments of its own.

    Args:
        folder: folder of the shard; made at the first append if necessary.
        name: name of the writer; the segments' names begin with it.
        segment_bytes: a new segment is begun before one would grow beyond this.
        fsync: whether payload survives a power cut once :meth:`append` has returned.
    """

    def __init__(self, folder: Path, shard: int, name: str, *, segment_bytes: int, fsync: bool) -> None:
        self._folder, self._shard, self._segment_bytes, self._fsync = folder, shard, segment_bytes, fsync
        self._prefix = f"{name}-{os.getpid()}-{secrets.token_hex(4)}"
        self._begun = 0
        self._segment, self._file, self._end = "", -1, 0
        self._using = threading.Lock()
        self._umask = os.umask(0o077)
        os.umask(self._umask)

    def append(self, payloads: Sequence[bytes]) -> list[PayloadRef]:
        """Write all payloads next to one another, or none of them.

        Raises:
            DiskFull: nothing was written; the same call may succeed later.
        """
        if not payloads:
            return []
        size = sum(map(len, payloads))
        with self._using:
            if self._file < 0 or (self._end and self._end + size > self._segment_bytes):
                self._begin_segment(size)
            offset = self._end
            self._end = append_whole(self._file, payloads, offset, folder=self._folder, fsync=self._fsync)
            refs = []
            for payload in payloads:
                refs.append(PayloadRef(self._shard, self._segment, offset, len(payload), zlib.crc32(payload)))
                offset += len(payload)
        return refs

    def _begin_segment(self, wanted: int) -> None:
        segment = f"{self._prefix}-{self._begun:06d}{SUFFIX}"
        self._begun += 1
        users_umask = os.umask(self._umask)  # a tool may have set a umask under which nobody could read the files
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = os.open(self._folder / segment, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            if full := disk_full(error, self._folder, wanted):
                raise full from error
            raise
        finally:
            os.umask(users_umask)
        fcntl.flock(file, fcntl.LOCK_EX)
        self._close_segment()
        self._segment, self._file, self._end = segment, file, 0
        if self._fsync:
            sync(self._folder)

    def _close_segment(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def close(self) -> None:
        """Close the segment. A later :meth:`append` begins a new one."""
        with self._using:
            self._close_segment()


class PayloadReader:
    """Reads payload from the segments of one folder, and keeps some of them open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: OrderedDict[str, int] = OrderedDict()
        self._using = threading.Lock()

    def read(self, refs: Sequence[PayloadRef]) -> list[bytes]:
        """Read payloads in the order of ``refs``. Neighbours in a file are read together.

        Raises:
            PayloadLost: a payload is gone or damaged.
        """
        found: list[bytes] = []
        with self._using:
            for run in _neighbours(refs):
                data = self._read_run(run)
                for ref in run:
                    start = ref.offset - run[0].offset
                    payload = data if len(run) == 1 else data[start : start + ref.size]
                    self._check(ref, payload)
                    found.append(payload)
        return found

    def _read_run(self, run: Sequence[PayloadRef]) -> bytes:
        size = run[-1].offset + run[-1].size - run[0].offset
        path = self._folder / run[0].segment
        try:
            with naming(path):
                return os.pread(self._file(run[0].segment), size, run[0].offset)
        except FileNotFoundError as error:
            raise PayloadLost(path, run[0].offset, "its segment is not there") from error
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise PayloadLost(path, run[0].offset, "the disk cannot read it any more") from error

    def _file(self, segment: str) -> int:
        file = self._files.get(segment)
        if file is None:
            file = os.open(self._folder / segment, os.O_RDONLY)
            self._files[segment] = file
            if len(self._files) > _OPEN_SEGMENTS:
                os.close(self._files.popitem(last=False)[1])
        self._files.move_to_end(segment)
        return file

    def _check(self, ref: PayloadRef, payload: bytes) -> None:
        if len(payload) < ref.size:
            problem = f"{ref.size:,} bytes should be there, {len(payload):,} are"
        elif (checksum := zlib.crc32(payload)) != ref.checksum:
            problem = f"its checksum should be {ref.checksum:08x} and is {checksum:08x}"
        else:
            return
        raise PayloadLost(self._folder / ref.segment, ref.offset, problem)

    def close(self) -> None:
        """Close the segments."""
        with self._using:
            while self._files:
                os.close(self._files.popitem()[1])


def _neighbours(refs: Sequence[PayloadRef]) -> Iterable[Sequence[PayloadRef]]:
    start = 0
    for i in range(1, len(refs) + 1):
        if i == len(refs) or not (
            refs[i].segment == refs[i - 1].segment
            and refs[i].offset == refs[i - 1].offset + refs[i - 1].size
            and refs[i].offset + refs[i].size - refs[start].offset <= _READ_BYTES
        ):
            if start < i:
                yield refs[start:i]
            start = i


class PayloadStore:
    """Frees payload in the folder of one shard, which may be missing.

    Freed space is given back to the file system at once, in whole pages, by punching holes. A segment is removed when
    all of it is freed and no writer writes it any more. If payload is freed in the order in which it was written, the
    rest only takes the space of its bytes; if it is freed in random order, the rest takes up to one page more for each
    payload. On a file system without holes, only whole segments are given back.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._freed: dict[str, Extents] = {}
        self._set_aside: dict[str, Extents] = {}  # what the next sweep frees
        self._spared: set[str] = set()  # segments in which nothing is freed before that
        self._locked: dict[str, Extents] = {}  # what the next sweep frees where no writer holds the segment any more
        self._emptied: set[str] = set()  # segments that were freed completely while their writer was still writing
        self._punches = True
        self._using = threading.Lock()

    def free(self, refs: Iterable[PayloadRef]) -> None:
        """Free payload. Freeing it twice, or in a segment that is gone, does nothing.

        In segments that existed at :meth:`set_aside`, only :meth:`sweep` frees payload.
        """
        by_segment: dict[str, Extents] = {}
        for ref in refs:
            by_segment.setdefault(ref.segment, Extents()).add(ref.offset, ref.offset + ref.size)
        with self._using:
            for segment in self._emptied - by_segment.keys():
                self._free_in(segment, Extents())
            for segment, extents in by_segment.items():
                if segment in self._spared:
                    spared = self._set_aside.setdefault(segment, Extents())
                    for start, end in extents:
                        spared.add(start, end)
                else:
                    self._free_in(segment, extents)

    def is_empty(self) -> bool:
        """Whether the folder has no segment."""
        return not self._segments()

    def verify(self, refs: Collection[PayloadRef]) -> list[PayloadRef]:
        """Read all of ``refs``, and return those that are gone or damaged.

        Raises:
            PayloadGone: the whole folder is missing.
        """
        check_there(self._folder, refs)
        bad = []
        with closing(PayloadReader(self._folder)) as reader:
            for ref in refs:
                try:
                    reader.read([ref])
                except PayloadLost as error:
                    logger.warning("%s", error)
                    bad.append(ref)
        return bad

    def set_aside(self, live: Iterable[PayloadRef]) -> int:
        """Mark all payload except ``live`` for :meth:`sweep`, and return its size on disk.

        Changes nothing on disk. Only this method finds payload that was written but never handed in. Call it before the writers
        of a resumed run begin. A segment that is locked all the same, by a writer that has not died yet or by a process that was
        forked from it, is looked at again by the sweep.
        """
        kept: dict[str, Extents] = {}
        for ref in live:
            kept.setdefault(ref.segment, Extents()).add(ref.offset, ref.offset + ref.size)
        size = 0
        with self._using:
            self._set_aside, self._locked = {}, {}
            self._spared = {path.name for path in self._segments()}
            for path in self._segments():
                file = os.open(path, os.O_RDWR)
                try:
                    written = _is_written(file)
                    found, held = os.fstat(file), kept.get(path.name, Extents())
                finally:
                    os.close(file)
                unused = Extents()
                for start, end in held.gaps(found.st_size):
                    unused.add(start, end)
                if written:
                    self._locked[path.name] = unused
                elif list(unused) or not found.st_size:
                    self._set_aside[path.name] = unused
                    size += max(0, found.st_blocks * 512 - sum(end - start for start, end in held))
        return size

    def sweep(self) -> None:
        """Free the payload that was set aside, and the payload that was freed since in the same segments."""
        with self._using:
            set_aside, self._set_aside = self._set_aside, {}
            locked, self._locked = self._locked, {}
            self._spared = set()
            for segment, unused in locked.items():
                if self._is_locked(segment):
                    logger.warning(
                        "%s is still being written: what nobody needs of it stays until a resume", self._folder / segment
                    )
                    continue
                for start, end in unused:
                    set_aside.setdefault(segment, Extents()).add(start, end)
            for segment, unused in set_aside.items():
                self._free_in(segment, unused)

    def _is_locked(self, segment: str) -> bool:
        try:
            file = os.open(self._folder / segment, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            return _is_written(file)
        finally:
            os.close(file)

    def bytes_on_disk(self) -> int:
        """Return the disk space that all segments take, in bytes."""
        return sum(path.stat().st_blocks * 512 for path in self._segments())

    def _segments(self) -> list[Path]:
        return sorted(self._folder.glob(f"*{SUFFIX}"))

    def _free_in(self, segment: str, extents: Extents) -> None:
        freed = self._freed.setdefault(segment, Extents())
        merged = [(start, end, *freed.add(start, end)) for start, end in extents]
        try:
            file = os.open(self._folder / segment, os.O_RDWR)
        except FileNotFoundError:
            self._forget(segment)
            return
        try:
            written = _is_written(file)  # before its size: a writer may append once more, and then leave it
            if not freed.covers(0, os.fstat(file).st_size):
                self._punch(file, merged)
            elif written:
                self._punch(file, merged)
                self._emptied.add(segment)
            else:
                with naming(self._folder / segment):
                    os.ftruncate(file, 0)  # a reader that has the file open would otherwise keep its space in use
                (self._folder / segment).unlink()
                self._forget(segment)
        finally:
            os.close(file)

    def _forget(self, segment: str) -> None:
        del self._freed[segment]
        self._emptied.discard(segment)

    def _punch(self, file: int, merged: Iterable[tuple[int, int, int, int]]) -> None:
        """Free the pages that became unused when ``[start, end)`` joined extent ``[merged_start, merged_end)``."""
        for start, end, merged_start, merged_end in merged:
            first = max(start // PAGE, -(-merged_start // PAGE)) * PAGE
            behind = min(-(-end // PAGE), merged_end // PAGE) * PAGE
            if self._punches and first < behind:
                with naming(self._folder):
                    self._punches = punch_hole(file, first, behind)


def _is_written(file: int) -> bool:
    """Whether a writer has locked the segment. If not, no writer can lock it until ``file`` is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
