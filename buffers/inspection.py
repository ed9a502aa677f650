"""A report on a replay buffer for people: what it holds, how old that is, and whether the trained lengths are biased."""

from collections.abc import Mapping

import msgspec

from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import PolicyVersion, TaskId
from asyncrl.core.measures.buffer_statistics import BufferStatistics, GroupState, LedgerCounts, StaleTokens


class HeldFor(msgspec.Struct, frozen=True):
    """Groups that were born at the same version, are in the same state and have not ended.

    Attributes:
        version: the version at which they were born; none of their tokens is older.
        staleness: the staleness that their oldest token may have if they are trained now.
        age_s: the longest time that one of them may have been in its state.
    """

    version: PolicyVersion
    staleness: int
    state: GroupState
    groups: int
    age_s: float


class LengthBin(msgspec.Struct, frozen=True):
    """Episodes of ``shortest`` to ``longest`` tokens, and their share of all finished and of all trained ones."""

    shortest: int
    longest: int
    issued: int
    trained: int
    share_issued: float
    share_trained: float


class SourceCounts(msgspec.Struct, frozen=True):
    """A source of tasks: how many tasks were drawn from it, and how many malformed rows were skipped."""

    name: str
    drawn: int
    skipped: int


class BufferReport(msgspec.Struct, frozen=True):
    """A report on a replay buffer.

    Attributes:
        held: groups that have not ended, with their staleness and age.
        lengths: how long finished and trained episodes are.
        sources: counts of the task sources.

    Other fields are as in :class:`~asyncrl.core.measures.buffer_statistics.BufferStatistics`.
    """

    version: PolicyVersion
    ledger: LedgerCounts
    held: tuple[HeldFor, ...]
    lengths: tuple[LengthBin, ...]
    sources: tuple[SourceCounts, ...]
    payload_bytes: int
    kept_batches: int
    kept_bytes: int
    stale_tokens: StaleTokens
    late_samples: int
    lost_trajectories: int
    failures: Mapping[FailureKind, int]
    filtered_tasks: tuple[TaskId, ...]
    too_long: Mapping[str, int]
    too_long_tasks: tuple[TaskId, ...]


def inspect(statistics: BufferStatistics, drawn: Mapping[str, int], now: float) -> BufferReport:
    """Make the report as of ``now`` (seconds since the epoch); ``drawn`` is the number of tasks drawn from each source."""
    made_here = {"held", "lengths", "sources"}
    return BufferReport(
        **{name: getattr(statistics, name) for name in BufferReport.__struct_fields__ if name not in made_here},
        held=tuple(
            HeldFor(held.version, statistics.version - held.version, held.state, held.groups, max(0.0, now - held.since))
            for held in statistics.held
        ),
        lengths=_bins(statistics.lengths_issued, statistics.lengths_trained),
        sources=tuple(SourceCounts(name, count, statistics.skipped_rows.get(name, 0)) for name, count in drawn.items()),
    )


def _bins(issued: tuple[int, ...], trained: tuple[int, ...]) -> tuple[LengthBin, ...]:
    """Return the bins from the shortest episodes to the longest, without a gap."""
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
