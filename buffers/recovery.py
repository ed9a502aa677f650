"""A buffer as it was when its process ended, however it ended.

What always holds after a recovery: every change that anybody was told of has happened; nobody holds a ticket, and what was
running is issued again without counting as a failure; every row held can be read; nothing that nobody needs takes space.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.payload import PayloadRef
from asyncrl.core.recipe.schema import AppendOnlyJournal, FileTasks, Recipe
from buffers import commands
from buffers.journal import Journal, Recovery, read_journal
from buffers.replay_buffer import ReplayBuffer
from buffers.task_stream import TaskStream


class JournalOfAnotherRun(AsyncRLError):
    """A journal cannot be replayed, because what it says would mean something else now."""


class Store(Protocol):
    """The payload of one shard; see :class:`buffers.payload.PayloadStore`."""

    def verify(self, refs: Iterable[PayloadRef]) -> list[PayloadRef]:
        """Those that are gone or damaged."""
        ...

    def sweep(self, live: Iterable[PayloadRef]) -> int:
        """Give up everything else; how many bytes of disk that gave back."""
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
        swept_bytes: of payload that nobody needs.
        damaged_snapshots: names of snapshots that could not be used; older ones were.
    """

    resumed: bool
    records: int = 0
    committed: int = 0
    again: int = 0
    batches: int = 0
    rows_lost: int = 0
    cut_bytes: int = 0
    swept_bytes: int = 0
    damaged_snapshots: tuple[str, ...] = ()

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
        if self.swept_bytes:
            parts.append(f"{self.swept_bytes:,} bytes of trajectories that nobody needs were removed")
        return "; ".join(parts)


def recover(
    recipe: Recipe, tasks: TaskStream, folder: Path, stores: Mapping[int, Store], *, wait_s: float = 10.0
) -> tuple[ReplayBuffer, Journal, RecoveryReport]:
    """The buffer that the journal in ``folder`` describes; a new one if there is none yet.

    Args:
        recipe: the run's; its buffer keeps a journal.
        tasks: at its beginning; it is moved on to where the run was.
        stores: of all shards, by number. Nobody may write payload there yet.
        wait_s: how long to wait for the journal's last writer to die.

    Raises:
        JournalOfAnotherRun: ``recipe`` or ``tasks`` are not those that the journal was written with.
        JournalInUse, JournalDamaged, UnknownFormat: the journal cannot be opened.
        DiskFull: there is not even room to record the recovery.
        LedgerError: so much payload is lost that the learner's batches cannot be made again.
    """
    settings = recipe.buffer.journal
    assert isinstance(settings, AppendOnlyJournal)
    journal, found = Journal.open(
        folder,
        fsync=settings.fsync == "always",
        segment_bytes=settings.segment_mb << 20,
        identity=msgspec.json.encode(_Identity.of(recipe, tasks)),
        wait_s=wait_s,
    )
    try:
        buffer = rebuild(recipe, tasks, folder, found)
        report = _begin_anew(buffer, journal, found, stores)
        _plan(recipe.steps, buffer, journal, new=not report.resumed)
    except BaseException:
        journal.close()
        raise
    return buffer, journal, report


def rebuild(recipe: Recipe, tasks: TaskStream, folder: Path, found: Recovery) -> ReplayBuffer:
    """The buffer as what was ``found`` in the journal's ``folder`` leaves it. Writes nothing.

    Raises:
        JournalOfAnotherRun: ``recipe`` or ``tasks`` are not those that the journal was written with.
    """
    if found.identity is not None:
        _Identity.of(recipe, tasks).check(_decoded(found.identity), folder)
    buffer = ReplayBuffer(recipe, tasks) if found.snapshot is None else ReplayBuffer.restore(recipe, tasks, found.snapshot)
    commands.replay(found.records, buffer)
    _check_steps(recipe.steps, buffer.steps, folder)
    return buffer


def _check_steps(steps: int, planned: int, folder: Path) -> None:
    if steps < planned:
        raise JournalOfAnotherRun(
            f"{folder} is of a run of {planned} steps, and now steps is {steps}: a run can be made longer, not shorter; "
            f"set steps to {planned} or more, or launch a new run"
        )


def check_recipe(recipe: Recipe, folder: Path) -> None:
    """Compare ``recipe`` with the one that the journal in ``folder`` was written with. Takes nothing, and changes nothing.

    Raises:
        JournalOfAnotherRun: a replay would mean something else.
        JournalDamaged, UnknownFormat: the journal cannot be read.
    """
    found = read_journal(folder)
    if found.identity is not None:
        _check_keys(_keys_of(recipe), _decoded(found.identity).recipe, folder)
    told = [command.steps for command in map(commands.decode, found.records) if isinstance(command, commands.Plan)]
    if found.snapshot is not None:
        told.insert(0, msgspec.msgpack.decode(found.snapshot, type=_Planned).steps)
    if told:
        _check_steps(recipe.steps, told[-1], folder)


def _begin_anew(buffer: ReplayBuffer, journal: Journal, found: Recovery, stores: Mapping[int, Store]) -> RecoveryReport:
    """Take back what was handed out, and go on with the payload that is there."""
    lost = [ref for shard, refs in _by_shard(buffer.live_payload(), stores).items() for ref in stores[shard].verify(refs)]
    resumed = found.snapshot is not None or bool(found.records)
    rows_lost = 0
    if resumed:
        # Later commands build on the recovery's own changes, so these are part of the history, too. If they are refused, they are
        # not: the next attempt shall be refused as well. Nobody knows of them yet, so they may be written after they were made.
        command = commands.Recovered(tuple(lost))
        rows_lost = command.apply(buffer)
        journal.append(commands.encode(command))
        buffer.drain_freed()
    swept = sum(stores[shard].sweep(refs) for shard, refs in _by_shard(buffer.live_payload(), stores).items())
    statistics = buffer.statistics()
    return RecoveryReport(
        resumed=resumed,
        records=len(found.records),
        committed=statistics.ledger.committed,
        again=statistics.ledger.failed,
        batches=statistics.kept_batches,
        rows_lost=rows_lost,
        cut_bytes=found.cut_bytes,
        swept_bytes=swept,
        damaged_snapshots=found.damaged_snapshots,
    )


def _plan(steps: int, buffer: ReplayBuffer, journal: Journal, *, new: bool) -> None:
    if steps != buffer.steps or new:
        command = commands.Plan(steps)
        journal.append(commands.encode(command))
        command.apply(buffer)


def _by_shard(refs: Iterable[PayloadRef], stores: Mapping[int, Store]) -> dict[int, list[PayloadRef]]:
    by_shard: dict[int, list[PayloadRef]] = {shard: [] for shard in stores}
    for ref in dict.fromkeys(refs):
        by_shard[ref.shard].append(ref)
    return by_shard


class _Planned(msgspec.Struct):
    """Of a snapshot, how long the run is to be."""

    steps: int


class _Identity(msgspec.Struct, frozen=True):
    """What a replay depends on, beside the records: with anything else they would mean something else.

    Attributes:
        tasks: fingerprint of the task stream.
        recipe: the keys of the recipe that the buffer's behaviour depends on, and their values. Files of tasks may be moved.
    """

    tasks: str
    recipe: dict[str, Any]

    @classmethod
    def of(cls, recipe: Recipe, tasks: TaskStream) -> "_Identity":
        return cls(tasks.fingerprint(), _keys_of(recipe))

    def check(self, recorded: "_Identity", folder: Path) -> None:
        _check_keys(self.recipe, recorded.recipe, folder)
        if self.tasks != recorded.tasks:
            raise JournalOfAnotherRun(
                f"{folder} was written with other tasks (fingerprint {recorded.tasks}, now {self.tasks}); "
                "put the task files back as they were when the run began, or launch a new run"
            )


def _decoded(identity: bytes) -> _Identity:
    return msgspec.json.decode(identity, type=_Identity)


def _keys_of(recipe: Recipe) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins({key: getattr(recipe, key) for key in ("seed", "batch", "buffer", "tasks")})
    del values["buffer"]["journal"], values["tasks"]["evaluation"]
    if isinstance(recipe.tasks, FileTasks):
        for source in values["tasks"]["train"]:
            del source["path"]
    return values


def _check_keys(now: dict[str, Any], recorded: dict[str, Any], folder: Path) -> None:
    is_now, was = _flat(now), _flat(recorded)
    if changed := sorted({key for key, _ in set(is_now.items()) ^ set(was.items())}):
        told = ", ".join(f"{key} was {was.get(key, 'not there')} and is {is_now.get(key, 'not there')}" for key in changed)
        raise JournalOfAnotherRun(
            f"{folder} was written with another recipe: {told}; resume with the recipe the run began with, or launch a new run"
        )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = msgspec.json.encode(value).decode()
    return flat
