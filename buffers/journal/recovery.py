"""Recovery: brings a buffer back to where it was when its process ended, however it ended.

What always holds after a recovery: every change that was confirmed to a caller has happened; no worker holds a ticket,
and episodes that were running are issued again without counting as failures; every trajectory that the buffer holds can
be read.

A recovery has three steps, so that a resume that is refused has changed nothing:

1. :func:`recover` reads everything back and checks it. It changes no file except the journal's lock.
2. :meth:`Takeover.begin` writes the changes into the journal. It is called when everything else that the run needs has
   also been checked.
3. :meth:`Takeover.sweep` frees the trajectories that are not needed. It is called when the learner's first checkpoint
   since the recovery is on disk, because then the run has shown that it can go on without them. Until then every
   trajectory stays where it is, even those that the run itself frees meanwhile. So a run that was resumed by mistake,
   for example on a journal from a backup, has destroyed nothing that the right journal needs.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from asyncrl.buffers import commands
from asyncrl.buffers.commands import Command, SetTooLong
from asyncrl.buffers.journal.journal import Journal
from asyncrl.buffers.journal.journal_files import JournalGone, Recovery
from asyncrl.buffers.journal.unchangeable_keys import Identity, JournalOfAnotherRun
from asyncrl.buffers.limits import Limits
from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.core.episode_records import PayloadRef
from asyncrl.core.files.file_formats import UnknownFormat
from asyncrl.core.recipe.buffer import AppendOnlyJournalConfig


class Store(Protocol):
    """What a recovery needs of a shard's payload; see :class:`asyncrl.buffers.payload_store.PayloadStore`."""

    def is_empty(self) -> bool: ...  # noqa: D102
    def verify(self, refs: Collection[PayloadRef]) -> list[PayloadRef]: ...  # noqa: D102
    def set_aside(self, live: Collection[PayloadRef]) -> int: ...  # noqa: D102
    def sweep(self) -> None: ...  # noqa: D102


class RecoveryReport(msgspec.Struct, frozen=True):
    """What a recovery found. ``str(report)`` is a message for the user; it is empty for a new run.

    Attributes:
        resumed: whether there was something to recover.
        records: number of journal records that were replayed.
        committed: groups that are ready to be trained.
        again: groups that are issued again, including those whose generation was cut short.
        batches: kept batches, which the learner may ask for again.
        lost_trajectories: trajectories whose payload was gone or damaged; those not trained yet are generated again.
        cut_bytes: bytes of an unfinished record, never confirmed to a caller, that were cut off the end of the journal.
        set_aside_bytes: size of payload that is not needed; it is freed once the run has a new checkpoint.
        damaged_snapshots: names of snapshots that could not be used, so that an older one was.
        missing_snapshot: name of the newest snapshot if it is gone, so that an older one or all records were used.
    """

    resumed: bool
    records: int = 0
    committed: int = 0
    again: int = 0
    batches: int = 0
    lost_trajectories: int = 0
    cut_bytes: int = 0
    set_aside_bytes: int = 0
    damaged_snapshots: tuple[str, ...] = ()
    missing_snapshot: str = ""

    def __str__(self) -> str:
        if not self.resumed:
            return ""
        parts = [
            f"the buffer is as it was ({self.records} records replayed): {self.committed} groups are ready, {self.again} are "
            f"issued again, and {self.batches} batches are kept for a learner that begins from an earlier checkpoint"
        ]
        if self.lost_trajectories:
            parts.append(
                f"{self.lost_trajectories} trajectories were gone or damaged; what is not trained yet is generated again"
            )
        if self.cut_bytes:
            parts.append(f"{self.cut_bytes} bytes of an unfinished record were cut off the journal's end")
        if self.damaged_snapshots:
            parts.append(f"damaged and not used: {', '.join(self.damaged_snapshots)}")
        if self.missing_snapshot:
            parts.append(f"missing, but not needed: the journal's {self.missing_snapshot}")
        if self.set_aside_bytes:
            parts.append(
                f"{self.set_aside_bytes:,} bytes of trajectories that nobody needs are removed after the next checkpoint"
            )
        return "; ".join(parts)


class Takeover:
    """A buffer that was read back and checked, before anything is written. Made by :func:`recover`.

    Attributes:
        buffer: the buffer. Nobody may change it before :meth:`begin`.
        journal: where its commands go after that.
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
        """Write the changes of the recovery into the journal, which belongs to this process from now on. Call it once.

        Raises:
            DiskFull: there is no room for them.
        """
        # Later commands build on these changes, so they are part of the history. No caller has seen them yet, so they
        # may be written after they were applied.
        for change in self._changes:
            self.journal.append(commands.encode(change))

    def sweep(self) -> None:
        """Free the payload that was already unnecessary when the buffer was read back, in files that existed then."""
        for store in self._stores:
            store.sweep()


def recover(
    buffer: ReplayBuffer,
    identity: Identity,
    settings: AppendOnlyJournalConfig,
    folder: Path,
    stores: Mapping[int, Store],
    *,
    too_long: SetTooLong | None = None,
    wait_s: float = 10.0,
) -> Takeover:
    """Bring ``buffer`` to the state that the journal in ``folder`` records, and check it. A new run leaves it new.

    Args:
        buffer: a new buffer with the run's recipe and tasks.
        stores: stores of all shards, by number. Nobody may write payload there yet.
        too_long: the tasks that are left out because of their prompts.
        wait_s: how long to wait for the journal's last writer to die.

    Raises:
        JournalOfAnotherRun: the journal was written with another recipe or other tasks.
        JournalInUse, JournalDamaged, JournalGone, UnknownFormat: the journal cannot be opened.
        PayloadGone: the folder of a whole shard is missing, and trajectories in it are needed.
        LedgerError: so much payload is lost that the learner's batches cannot be made again.
    """
    steps, limits = buffer.steps, buffer.limits
    if not folder.is_dir():
        _check_new(folder, stores)
    journal, found = Journal.open(
        folder,
        fsync=settings.fsync == "always",
        segment_bytes=settings.segment_mb << 20,
        identity=identity.encoded(),
        wait_s=wait_s,
    )
    try:
        if found.is_empty:
            _check_new(folder, stores)
        journal.identity = rebuild(buffer, identity, folder, found).encoded()
        return _taken_over(buffer, steps, limits, too_long, journal, found, stores)
    except BaseException:
        journal.close()
        raise


def rebuild(buffer: ReplayBuffer, identity: Identity, folder: Path, found: Recovery) -> Identity:
    """Bring ``buffer``, which must be new, to the state that was ``found`` in the journal. Writes nothing.

    Returns:
        the identity that the journal has from now on.

    Raises:
        JournalOfAnotherRun: the journal was written with another recipe or other tasks than those of ``identity``.
        UnknownFormat: a record or the snapshot was not written by this version of the program.
    """
    steps = buffer.steps
    try:
        if found.identity is not None:
            identity = identity.going_on(found.identity, folder)
            buffer.first_depth = identity.first_depth
        if found.snapshot is not None:
            buffer.restore(found.snapshot)
        commands.replay(found.records, buffer)
    except msgspec.MsgspecError as error:
        raise UnknownFormat(folder, f"holds a record that this version of asyncrl cannot read ({error})") from error
    if steps < buffer.steps:
        raise JournalOfAnotherRun(
            f"{folder} belongs to a run of {buffer.steps} steps, but steps is now {steps}: a run can be made longer, not "
            f"shorter; set steps to {buffer.steps} or more, or launch a new run"
        )
    return identity


def _check_new(folder: Path, stores: Mapping[int, Store]) -> None:
    """Refuse an empty journal if there are trajectories: every run writes its first record before its first trajectory."""
    if held := [str(shard) for shard, store in stores.items() if not store.is_empty()]:
        raise JournalGone(folder, f"there are trajectories of the run (payload shard {', '.join(held)})")


def _taken_over(
    buffer: ReplayBuffer,
    steps: int,
    limits: Limits,
    too_long: SetTooLong | None,
    journal: Journal,
    found: Recovery,
    stores: Mapping[int, Store],
) -> Takeover:
    """Take back all running episodes, check which payload is lost, and set aside the payload that is not needed.

    Args:
        steps, limits: what the recipe says now; the buffer has what its journal says.
    """
    resumed = not found.is_empty
    changes: list[Command] = []
    lost_trajectories = 0
    if resumed:
        lost = [
            ref for shard, refs in _by_shard(buffer.groups.live_payload(), stores).items() for ref in stores[shard].verify(refs)
        ]
        recovered = commands.Recovered(tuple(lost))
        lost_trajectories = recovered.apply(buffer)
        changes.append(recovered)
        buffer.drain_freed()
    if steps != buffer.steps or not resumed:
        set_steps = commands.SetSteps(steps)
        set_steps.apply(buffer)
        changes.append(set_steps)
    if limits != buffer.limits or not resumed:
        set_limits = commands.SetLimits(limits)
        set_limits.apply(buffer)
        changes.append(set_limits)
    if too_long is not None:
        too_long.apply(buffer)
        changes.append(too_long)
    statistics = buffer.statistics()
    report = RecoveryReport(
        resumed=resumed,
        records=len(found.records),
        committed=statistics.ledger.committed,
        again=statistics.ledger.failed,
        batches=statistics.kept_batches,
        lost_trajectories=lost_trajectories,
        cut_bytes=found.cut_bytes,
        set_aside_bytes=sum(
            stores[shard].set_aside(refs) for shard, refs in _by_shard(buffer.groups.live_payload(), stores).items()
        ),
        damaged_snapshots=found.damaged_snapshots,
        missing_snapshot=found.missing_snapshot,
    )
    return Takeover(buffer, journal, report, changes, stores.values())


def _by_shard(refs: Iterable[PayloadRef], stores: Mapping[int, Store]) -> dict[int, list[PayloadRef]]:
    by_shard: dict[int, list[PayloadRef]] = {shard: [] for shard in stores}
    for ref in dict.fromkeys(refs):
        by_shard[ref.shard].append(ref)
    return by_shard
