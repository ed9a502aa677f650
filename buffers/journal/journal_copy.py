"""Copies the journal of a live run as it is now, for a resume where nothing else of the run's buffer is.

What always holds: a copy is a journal by itself, of all records up to a moment after the copying began.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from asyncrl.buffers import commands
from asyncrl.buffers.commands import Command
from asyncrl.buffers.journal import journal_files
from asyncrl.buffers.journal.journal import Journal
from asyncrl.buffers.journal.journal_files import LOG, SNAPSHOT, Head
from asyncrl.buffers.journal.recovery import rebuild
from asyncrl.buffers.journal.unchangeable_keys import Identity
from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.recipe.buffer import AppendOnlyJournalConfig

_ATTEMPTS = 5
"""How often copying begins again because the writer removed a file that was to be copied."""
NAME = "journal"
"""The name of the journal's folder in a copy; its head lies beside it."""


def copy_journal(folder: Path, to: Path) -> None:
    """Copy the journal in ``folder``, which another process may be writing, into the folder ``to``, which is made whole.

    Raises:
        OSError: the disk refuses; there is no ``to`` then.
    """
    making = to.with_name(f".{to.name}.making")
    for attempt in range(_ATTEMPTS):
        shutil.rmtree(making, ignore_errors=True)
        (making / NAME).mkdir(parents=True)
        try:
            _copy(folder, making / NAME)
            break
        except FileNotFoundError:
            if attempt == _ATTEMPTS - 1:
                raise
    shutil.rmtree(to, ignore_errors=True)
    making.rename(to)


def _copy(folder: Path, to: Path) -> None:
    snapshots, segments = journal_files.listing(folder)
    for number, suffix in _whole(snapshots, segments):
        _link(journal_files.path_of(folder, number, suffix), to)
    for number in segments[-1:]:  # it may grow
        shutil.copyfile(journal_files.path_of(folder, number, LOG), journal_files.path_of(to, number, LOG))
    Head(max(segments, default=0), max(snapshots, default=0)).write(to)


def _whole(snapshots: list[int], segments: list[int]) -> Iterator[tuple[int, str]]:
    """The files that do not change any more."""
    yield from ((number, SNAPSHOT) for number in snapshots)
    yield from ((number, LOG) for number in segments[:-1])


def _link(file: Path, to: Path) -> None:
    try:
        os.link(file, to / file.name)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links
        shutil.copyfile(file, to / file.name)


def give_up_payload(
    journal: Path, settings: AppendOnlyJournalConfig, buffer: ReplayBuffer, identity: Identity, version: PolicyVersion
) -> None:
    """Record in a copied journal that none of the trajectories it knows is there, so that they are generated again.

    Args:
        buffer: a new buffer with the run's recipe and tasks.
        version: the version of the checkpoint that the copy goes with; no batch after it may have been handed out.

    Raises:
        JournalOfAnotherRun, JournalInUse, JournalDamaged, JournalGone, UnknownFormat: the journal cannot be used.
    """
    identity = rebuild(buffer, identity, journal, journal_files.read_journal(journal))
    checkpointed = commands.Checkpointed(version)
    checkpointed.apply(buffer)
    changes: list[Command] = [checkpointed, commands.Recovered(tuple(buffer.groups.live_payload()))]
    writer, _ = Journal.open(
        journal,
        fsync=settings.fsync == "always",
        segment_bytes=settings.segment_mb << 20,
        identity=identity.encoded(),
    )
    try:
        for change in changes:
            writer.append(commands.encode(change))
    finally:
        writer.close()
