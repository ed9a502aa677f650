"""A buffer as it was when its process ended, however it ended.

What always holds after a recovery: every change that anybody was told of has happened; nobody holds a ticket, and what was
running is issued again without counting as a failure; every row held can be read.

A recovery is done in three steps, so that a resume that is refused, for whatever reason, has changed nothing:

1. :func:`recover` reads everything back and checks it, and changes no file but the journal's lock;
2. :meth:`Takeover.begin`, called when all else that the run needs has been checked, too, writes what changed into the journal;
3. :meth:`Takeover.sweep` gives up the trajectories that nobody needs. It is called when the run has shown that it can go on
   without them: when its learner's first checkpoint since the recovery is on disk. Until then every trajectory that was there
   lies where it lay, also those that the run itself gives up meanwhile: a run that was resumed by mistake, on a journal from a
   backup for example, has not destroyed what the right journal needs.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from asyncrl.core.payload import PayloadRef
from asyncrl.core.recipe.schema import AppendOnlyJournal, Recipe
from buffers import commands
from buffers.commands import Command
from buffers.frames import UnknownFormat
from buffers.identity import Identity, JournalOfAnotherRun
from buffers.journal import Journal
from buffers.journal_files import JournalGone, Recovery
from buffers.replay_buffer import ReplayBuffer
from buffers.task_stream import TaskStream


class Store(Protocol):
    """The payload of one shard; see :class:`buffers.payload.PayloadStore`."""

    def is_empty(self) -> bool:
        """Whether there is no payload at all."""
        ...

    def verify(self, refs: Collection[PayloadRef]) -> list[PayloadRef]:
        """Those that are gone or damaged; ``PayloadGone`` if the whole shard is."""
        ...

    def set_aside(self, live: Collection[PayloadRef]) -> int:
        """Remember everything else for :meth:`sweep`, and change nothing; how many bytes of disk it takes."""
        ...

    def sweep(self) -> None:
        """Give up what was set aside."""
        ...


class RecoveryReport(msgspec.Struct, frozen=True):
    """What a recovery found; as text, what a user should know of it, and empty for a run that begins.

    Attributes:
        resumed: there was something to recover.
        records: replayed.
        committed: groups that are ready to be trained.
        again: groups that are to be issued again, those whose generation was cut short among them.
        batches: handed out and not in every checkpoint that is kept: a learner may be given them again.
        rows_lost: whose payload was gone or damaged; those that were not trained yet are generated again.
        cut_bytes: torn off the end of the journal: of a record that nobody was told of.
        set_aside_bytes: of payload that nobody needs; given up once the run has a new checkpoint.
        damaged_snapshots: names of snapshots that could not be used; older ones were.
        missing_snapshot: name of the newest snapshot if it is gone; an older one was used, or all records from the beginning.
    """

    resumed: bool
    records: int = 0
    committed: int = 0
    again: int = 0
    batches: int = 0
    rows_lost: int = 0
    cut_bytes: int = 0
    set_aside_bytes: int = 0
    damaged_snapshots: tuple[str, ...] = ()
    missing_snapshot: str = ""

    def __str__(self) -> str:
        if not self.resumed:
            return ""
        parts = [
            f"the buffer is as it was ({self.records} records replayed): {self.committed} groups are ready, {self.again} are "
            f"issued again, and {self.batches} batches are kept for a learner that begins from a checkpoint before them"
        ]
        if self.rows_lost:
            parts.append(
                f"the trajectories of {self.rows_lost} rows were gone or damaged; what is not trained yet is generated again"
            )
        if self.cut_bytes:
            parts.append(f"{self.cut_bytes} bytes of an unfinished record were cut off the journal's end")
        if self.damaged_snapshots:
            parts.append(f"damaged and not used: {', '.join(self.damaged_snapshots)}")
        if self.missing_snapshot:
            parts.append(f"gone, and done without: the journal's {self.missing_snapshot}")
        if self.set_aside_bytes:
            parts.append(
                f"{self.set_aside_bytes:,} bytes of trajectories that nobody needs are removed after the next checkpoint"
            )
        return "; ".join(parts)


class Takeover:
    """A buffer that was read back and checked, and has not written anything yet. Made by :func:`recover`.

    Attributes:
        buffer: as it goes on from here. Nobody else may change it before :meth:`begin`.
        journal: where its commands go after that.
        report: what was found.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        journal: Journal,
        report: RecoveryReport,
        changes: Iterable[Command],
        stores: Iterable[Store],
    ) -> None:
        self.buffer, self.journal, self.report = buffer, journal, report
        self._changes, self._stores = tuple(changes), tuple(stores)

    def begin(self) -> None:
        """Record what the recovery changed: from here on the journal is this process's. Call it once.

        Raises:
            DiskFull: there is not even room for that.
        """
        # Later commands build on the recovery's own changes, so these are part of the history, too. Nobody knows of them yet, so
        # they may be written after they were made.
        for change in self._changes:
            self.journal.append(commands.encode(change))

    def sweep(self) -> None:
        """Give up the payload that nobody needed when the buffer was read back, in files that were there then."""
        for store in self._stores:
            store.sweep()


def recover(recipe: Recipe, tasks: TaskStream, folder: Path, stores: Mapping[int, Store], *, wait_s: float = 10.0) -> Takeover:
    """The buffer that the journal in ``folder`` describes, checked in full; a new one if the run has not begun yet.

    Args:
        recipe: the run's; its buffer keeps a journal.
        tasks: at its beginning; it is moved on to where the run was.
        stores: of all shards, by number. Nobody may write payload there yet.
        wait_s: how long to wait for the journal's last writer to die.

    Raises:
        JournalOfAnotherRun: ``recipe`` or ``tasks`` are not those that the journal was written with.
        JournalInUse, JournalDamaged, JournalGone, UnknownFormat: the journal cannot be opened.
        PayloadGone: the folder of a whole shard is not there, and what lay in it is needed.
        LedgerError: so much payload is lost that the learner's batches cannot be made again.
    """
    settings = recipe.buffer.journal
    assert isinstance(settings, AppendOnlyJournal)
    if not folder.is_dir():
        _check_new(folder, stores)
    journal, found = Journal.open(
        folder,
        fsync=settings.fsync == "always",
        segment_bytes=settings.segment_mb << 20,
        identity=Identity.of(recipe, tasks).encoded(),
        wait_s=wait_s,
    )
    try:
        if found.is_empty:
            _check_new(folder, stores)
        return _taken_over(recipe, rebuild(recipe, tasks, folder, found), journal, found, stores)
    except BaseException:
        journal.close()
        raise


def rebuild(recipe: Recipe, tasks: TaskStream, folder: Path, found: Recovery) -> ReplayBuffer:
    """The buffer as what was ``found`` in the journal's ``folder`` leaves it. Writes nothing.

    Raises:
        JournalOfAnotherRun: ``recipe`` or ``tasks`` are not those that the journal was written with.
        UnknownFormat: a record or the snapshot is none of this program's.
    """
    try:
        if found.identity is not None:
            Identity.of(recipe, tasks).check(found.identity, folder)
        buffer = ReplayBuffer(recipe, tasks) if found.snapshot is None else ReplayBuffer.restore(recipe, tasks, found.snapshot)
        commands.replay(found.records, buffer)
    except msgspec.MsgspecError as error:
        problem = f"{folder} holds a record that is none of this program's ({error})"
        raise UnknownFormat(f"{problem}; resume with the version of asyncrl that wrote it") from error
    if recipe.steps < buffer.steps:
        raise JournalOfAnotherRun(
            f"{folder} is of a run of {buffer.steps} steps, and now steps is {recipe.steps}: a run can be made longer, not "
            f"shorter; set steps to {buffer.steps} or more, or launch a new run"
        )
    return buffer


def _check_new(folder: Path, stores: Mapping[int, Store]) -> None:
    """A journal that holds nothing is that of a run that begins, unless there are trajectories: its first record is older."""
    if held := [str(shard) for shard, store in stores.items() if not store.is_empty()]:
        raise JournalGone(folder, f"there are trajectories of the run (payload shard {', '.join(held)})")


def _taken_over(recipe: Recipe, buffer: ReplayBuffer, journal: Journal, found: Recovery, stores: Mapping[int, Store]) -> Takeover:
    """Take back what was handed out, and see what payload is there."""
    resumed = not found.is_empty
    changes: list[Command] = []
    rows_lost = 0
    if resumed:
        lost = [ref for shard, refs in _by_shard(buffer.live_payload(), stores).items() for ref in stores[shard].verify(refs)]
        recovered = commands.Recovered(tuple(lost))
        rows_lost = recovered.apply(buffer)
        changes.append(recovered)
        buffer.drain_freed()
    if recipe.steps != buffer.steps or not resumed:
        plan = commands.Plan(recipe.steps)
        plan.apply(buffer)
        changes.append(plan)
    statistics = buffer.statistics()
    report = RecoveryReport(
        resumed=resumed,
        records=len(found.records),
        committed=statistics.ledger.committed,
        again=statistics.ledger.failed,
        batches=statistics.kept_batches,
        rows_lost=rows_lost,
        cut_bytes=found.cut_bytes,
        set_aside_bytes=sum(stores[shard].set_aside(refs) for shard, refs in _by_shard(buffer.live_payload(), stores).items()),
        damaged_snapshots=found.damaged_snapshots,
        missing_snapshot=found.missing_snapshot,
    )
    return Takeover(buffer, journal, report, changes, stores.values())


def _by_shard(refs: Iterable[PayloadRef], stores: Mapping[int, Store]) -> dict[int, list[PayloadRef]]:
    by_shard: dict[int, list[PayloadRef]] = {shard: [] for shard in stores}
    for ref in dict.fromkeys(refs):
        by_shard[ref.shard].append(ref)
    return by_shard
