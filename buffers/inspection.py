"""What a replay buffer holds and what became of all it issued, for people: ages, staleness, and where lengths are biased."""

from collections.abc import Mapping

import msgspec

from asyncrl.core.buffer_statistics import BufferStatistics, GroupState, LedgerCounts, StaleTokens
from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import PolicyVersion, TaskId


class HeldFor(msgspec.Struct, frozen=True):
    """Groups that have not ended.

    Attributes:
        version: at which they were born: none of their tokens is older.
        staleness: of the oldest token they may hold, were they trained now.
        state: they are in.
        groups: how many there are.
        age_s: none of them is in its state for longer.
    """

    version: PolicyVersion
    staleness: int
    state: GroupState
    groups: int
    age_s: float


class LengthBin(msgspec.Struct, frozen=True):
    """Rows of ``shortest`` to ``longest`` tokens, and which share of all finished rows, and of all trained ones, they are."""

    shortest: int
    longest: int
    issued: int
    trained: int
    share_issued: float
    share_trained: float


class Source(msgspec.Struct, frozen=True):
    """A source of tasks: how many were drawn, and how many of its rows are malformed and were skipped."""

    name: str
    drawn: int
    skipped: int


class BufferReport(msgspec.Struct, frozen=True):
    """See the fields of the same names of :class:`buffers.statistics.BufferStatistics`."""

    version: PolicyVersion
    ledger: LedgerCounts
    held: tuple[HeldFor, ...]
    lengths: tuple[LengthBin, ...]
    sources: tuple[Source, ...]
    payload_bytes: int
    kept_batches: int
    kept_bytes: int
    stale_tokens: StaleTokens
    late_samples: int
    lost_trajectories: int
    failures: Mapping[FailureKind, int]
    filtered_tasks: tuple[TaskId, ...]


def inspect(statistics: BufferStatistics, drawn: Mapping[str, int], now: float) -> BufferReport:
    """The report at ``now``, seconds since the epoch; ``drawn``: tasks from each source."""
    return BufferReport(
        version=statistics.version,
        ledger=statistics.ledger,
        held=tuple(
            HeldFor(held.version, statistics.version - held.version, held.state, held.groups, max(0.0, now - held.since))
            for held in statistics.held
        ),
        lengths=_bins(statistics.lengths_issued, statistics.lengths_trained),
        sources=tuple(Source(name, count, statistics.skipped_rows.get(name, 0)) for name, count in drawn.items()),
        payload_bytes=statistics.payload_bytes,
        kept_batches=statistics.kept_batches,
        kept_bytes=statistics.kept_bytes,
        stale_tokens=statistics.stale_tokens,
        late_samples=statistics.late_samples,
        lost_trajectories=statistics.lost_trajectories,
        failures=statistics.failures,
        filtered_tasks=statistics.filtered_tasks,
    )


def _bins(issued: tuple[int, ...], trained: tuple[int, ...]) -> tuple[LengthBin, ...]:
    """From the shortest rows there are to the longest, without a gap."""
    trained += (0,) * (len(issued) - len(trained))
    all_issued, all_trained = max(1, sum(issued)), max(1, sum(trained))
    shortest = next((digits for digits, rows in enumerate(issued) if rows), len(issued))
    return tuple(
        LengthBin(
            shortest=1 << digits >> 1,
            longest=(1 << digits) - 1,
            issued=issued[digits],
            trained=trained[digits],
            share_issued=issued[digits] / all_issued,
            share_trained=trained[digits] / all_trained,
        )
        for digits in range(shortest, len(issued))
    )
