"""Reads the files of a journal: its newest whole snapshot, the records since then, and what is missing.

What always holds: reading changes nothing; a damaged or missing file that is not needed is reported, and one that is
needed raises an error that names the file and says what to do. A journal whose files are gone is never taken for a new
one.

A journal is a folder of segments ``00000001.log`` and snapshots ``00000001.snapshot``, in the format of
``buffers/journal/frames.py``. Beside the folder lies its head, a small file that says how far the journal has come. Without the
head, it would not be noticed if the newest files, or all of them, were gone.
"""

import logging
import os
from pathlib import Path

import msgspec

from asyncrl.buffers.journal import frames
from asyncrl.buffers.journal.frames import Header
from asyncrl.core.errors import AsyncRLError
from asyncrl.core.files.file_errors import naming

logger = logging.getLogger(__name__)

LOG, SNAPSHOT, DAMAGED = ".log", ".snapshot", ".damaged"
_HEAD = ".head"
_READ_ATTEMPTS = 5
"""How often a reader starts again because the writer removed a file that it was about to read."""


class JournalDamaged(AsyncRLError):
    """A journal cannot be read without losing something that was recorded.

    Args:
        file: the damaged or missing file.
        offset: where the damage begins in the file, in bytes.
        remedy: how to go on without the damaged or missing records; empty if that is not possible.
    """

    def __init__(self, file: Path, offset: int, problem: str, remedy: str = "") -> None:
        self.file, self.offset, self.problem, self.remedy = file, offset, problem, remedy
        instead = f", or, to give up what was recorded there and since, {remedy} and try again" if remedy else ""
        super().__init__(f"{file} is damaged at offset {offset:,}: {problem}; restore the file from a backup{instead}")


class JournalGone(AsyncRLError):
    """The journal holds nothing, although its run had begun.

    Args:
        evidence: what shows that the run had begun.
    """

    def __init__(self, folder: Path, evidence: str) -> None:
        self.folder, self.evidence = folder, evidence
        super().__init__(
            f"the run's journal {folder} is gone or holds nothing, although {evidence}; put it back as it was and try again "
            "(without it the run cannot go on: if it is lost, launch a new run)"
        )


class Recovery(msgspec.Struct, frozen=True):
    """The content of a journal.

    Attributes:
        snapshot: the newest whole snapshot; None if there is none.
        records: the records appended since the snapshot, oldest first.
        cut_bytes: size of a torn or damaged end; 0 if there is none.
        cut_segment: name of the segment with that end; otherwise empty.
        damaged_snapshots: names of newer snapshots that could not be used.
        missing_snapshot: name of the newest snapshot if it is gone; otherwise empty.
        identity: which run the journal belongs to; None if it is empty.
    """

    snapshot: bytes | None
    records: list[bytes]
    cut_bytes: int = 0
    cut_segment: str = ""
    damaged_snapshots: tuple[str, ...] = ()
    missing_snapshot: str = ""
    identity: bytes | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the journal holds nothing at all."""
        return self.snapshot is None and not self.records


class Found(msgspec.Struct):
    """The content of a journal, and the place where it goes on.

    Attributes:
        segment: number of the last segment, or of the next one if there is none yet.
        end: where the last whole record of that segment ends; 0 if the segment must be begun.
        position: number of records ever appended to the journal.
        size: bytes of ``recovery.records`` on disk.
    """

    recovery: Recovery
    segment: int
    end: int
    position: int
    size: int


class Head(msgspec.Struct, frozen=True):
    """How far a journal has come at least; the file beside its folder holds this.

    Attributes:
        segment: number of the newest segment that was begun; 0 if there is none yet.
        snapshot: number of the newest snapshot; 0 if there is none yet.
    """

    segment: int = 0
    snapshot: int = 0

    def write(self, folder: Path) -> None:
        """Write the head beside the journal's ``folder``. A process that is killed meanwhile leaves this head or the one before.

        Raises:
            OSError: the disk refuses. A full disk does so only the first time, since the size never changes.
        """
        file = os.open(head_of(folder), os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(file, f"{self.segment:08d} {self.snapshot:08d}\n".encode(), 0)
        finally:
            os.close(file)

    @classmethod
    def read(cls, folder: Path) -> "Head":
        """Read the head of the journal in ``folder``. If it is missing or unreadable, return that of a new journal."""
        path = head_of(folder)
        try:
            segment, snapshot = _content(path).decode("ascii").split()
            return cls(int(segment), int(snapshot))
        except FileNotFoundError:
            return cls()
        except ValueError:
            logger.warning("%s cannot be read, so missing newest files of the journal cannot be noticed", path)
            return cls()


def read_journal(folder: Path) -> Recovery:
    """Read the journal in ``folder``, which another process may be writing. Changes nothing.

    Raises:
        FileNotFoundError: there is no journal, and there never was one.
        JournalDamaged, JournalGone, UnknownFormat: the files cannot be read; see these classes.
    """
    for _ in range(_READ_ATTEMPTS):
        before = listing(folder)
        try:
            found = find(folder)
        except (JournalDamaged, JournalGone, FileNotFoundError):
            if listing(folder) == before:
                raise
            # While we were reading, the writer took a snapshot and removed files that are no longer needed.
            continue
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is not a journal")
        return found.recovery
    return find(folder).recovery


def read_begun(folder: Path) -> Recovery:
    """Read the journal in ``folder`` as :func:`read_journal` does; an empty one if it was not begun yet."""
    try:
        return read_journal(folder)
    except FileNotFoundError:
        return Recovery(None, [])


def path_of(folder: Path, number: int, suffix: str) -> Path:
    """Return the path of file ``number`` of the kind with this ``suffix``."""
    return folder / f"{number:08d}{suffix}"


def head_of(folder: Path) -> Path:
    """Return the path of a journal's head. It lies beside ``folder``, so that it stays when the folder is removed."""
    return folder.with_name(f"{folder.name}{_HEAD}")


def numbers(folder: Path, suffix: str) -> list[int]:
    """Return the numbers of the files with this ``suffix``, ascending."""
    return sorted(int(path.stem) for path in folder.glob(f"*{suffix}") if path.stem.isdecimal())


def listing(folder: Path) -> tuple[list[int], list[int]]:
    """Return the numbers of the snapshots, and those of the segments."""
    return numbers(folder, SNAPSHOT), numbers(folder, LOG)


def find(folder: Path) -> Found:
    """Read the journal in ``folder``. If neither folder nor head exists, the journal is empty.

    Raises:
        JournalDamaged: a file that is needed is damaged or gone.
        JournalGone: all files are gone.
        UnknownFormat: another version of this program wrote the journal.
    """
    head = Head.read(folder)
    snapshots, segments = listing(folder)
    if head.segment and not snapshots and not segments:
        raise JournalGone(folder, f"{head_of(folder)} says that it had reached segment {head.segment}")
    missing = path_of(folder, head.snapshot, SNAPSHOT).name if head.snapshot > max(snapshots, default=0) else ""
    if missing:
        logger.warning("snapshot %s of %s is gone", missing, folder)
    damaged: list[str] = []
    for number in reversed(snapshots):
        if taken := _read_snapshot(folder, number, segments):
            header, state = taken
            found = _read_segments(folder, number, header, [n for n in segments if n >= number], head)
            found.recovery = msgspec.structs.replace(found.recovery, snapshot=state)
            break
        damaged.append(path_of(folder, number, SNAPSHOT).name)
    else:
        found = _read_segments(folder, 1, Header(0, None), segments, head)
    found.recovery = msgspec.structs.replace(found.recovery, damaged_snapshots=tuple(damaged), missing_snapshot=missing)
    return found


def _content(path: Path) -> bytes:
    with naming(path):
        return path.read_bytes()


def _read_snapshot(folder: Path, number: int, segments: list[int]) -> tuple[Header, bytes] | None:
    """Read snapshot ``number``; None if it cannot be used.

    An undamaged snapshot cannot be used either if the journal went on without it before it was put back: the segment
    before it then has more records than the snapshot covers.
    """
    path = path_of(folder, number, SNAPSHOT)
    header, states, damage = frames.read(_content(path), path)
    if header is None or len(states) != 1 or damage is not None:
        logger.warning("snapshot %s is damaged and is not used", path)
        return None
    if number not in segments and number - 1 in segments:
        segment = path_of(folder, number - 1, LOG)
        before, records, _ = frames.read(_content(segment), segment)
        if before is not None and before.position + len(records) > header.position:
            logger.warning("snapshot %s is older than the records before it and is not used", path)
            return None
    return header, states[0]


def _read_segments(folder: Path, first: int, before: Header, segments: list[int], head: Head) -> Found:
    """Read the records of ``segments``, which must continue without a gap from where ``before`` ends."""
    records: list[bytes] = []
    position, identity, size = before.position, before.identity, 0
    for number in range(first, max(head.segment, *segments, 0) + 1):
        path = path_of(folder, number, LOG)
        readable = number > first or before.identity is not None
        if number not in segments:
            raise _missing(path, segments, head, readable)
        data = _content(path)
        header, found, damage = frames.read(data, path)
        last = number == segments[-1]
        if header is not None and header.position != position:
            problem = f"it begins with record {header.position:,}, but record {position:,} is next"
            raise JournalDamaged(path, 0, problem, _without(path, 0, readable))
        position += len(found)
        records += found
        if header is not None:
            identity = header.identity
        if damage is not None and (damage.records_behind or not last):
            problem = "there is no whole record here, but there are some after it"
            kept = damage.offset if found else 0
            raise JournalDamaged(path, damage.offset, problem, _without(path, kept, readable))
        size += len(data)
        if last and head.segment <= number:
            end = len(data) if damage is None else damage.offset
            if not found:
                end = 0  # the segment was begun, and not even its first record was written
            cut = len(data) - end
            recovery = Recovery(None, records, cut, "" if end == len(data) > 0 else path.name, identity=identity)
            return Found(recovery, number, end, position, size - cut)
    return Found(Recovery(None, records, identity=identity), first, 0, position, size)


def _missing(path: Path, segments: list[int], head: Head, readable: bool) -> JournalDamaged:
    """Make the error for a missing segment; ``readable`` says whether anything before it can be read."""
    if int(path.stem) > max(segments, default=0):
        problem = (
            f"the file is not there, and {head_of(path.parent).name} says that the journal had reached segment {head.segment}"
        )
        return JournalDamaged(path, 0, problem, f"move {head_of(path.parent)} away" if readable else "")
    problem = "the file is not there, but later ones are"
    if not readable:
        problem += f"; they cannot be read without it or a snapshot of {path.parent} from a backup"
    return JournalDamaged(path, 0, problem, _without(path, 0, readable))


def _without(path: Path, kept: int, readable: bool) -> str:
    """Say how to give up segment ``path`` after its first ``kept`` bytes, and all later files; empty if nothing would be left."""
    later = f"all later files of {path.parent} away, and {head_of(path.parent)}, too,"
    if kept:
        return f"keep a copy of {path.parent}, cut the file off there (truncate -s {kept} {path}), move {later}"
    return f"move it and {later}" if readable else ""
