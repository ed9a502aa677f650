"""What the buffer has done and what it holds, as numbers that are kept up to date and never counted anew."""

from collections.abc import Mapping

import msgspec

from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import PolicyVersion, TaskId
from buffers.group import GroupState
from buffers.ledger import LedgerCounts


class StaleTokens(msgspec.Struct):
    """Sampled tokens that no loss saw for their age: ``masked`` in rows that were handed out, ``dropped`` with their groups."""

    masked: int = 0
    dropped: int = 0


class HeldGroups(msgspec.Struct, frozen=True):
    """Groups that have not ended.

    Attributes:
        version: at which they were born: none of their tokens is older.
        state: they are in.
        groups: how many there are.
        since: seconds since the epoch; none of them is in its state for longer.
    """

    version: PolicyVersion
    state: GroupState
    groups: int
    since: float


class BufferStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What the buffer holds, and what became of all it ever issued.

    Attributes:
        version: the clock.
        ledger: groups, trajectories and draws of tasks by state.
        payload_bytes: of finished rows whose group has not ended.
        kept_batches, kept_bytes: batches that may have to be trained again after a crash; what only they still need.
        held: groups that have not ended, by version and state.
        lengths_issued: finished rows, whatever became of them, by length: entry b counts lengths of b binary digits,
            ``[2 ** (b - 1), 2 ** b)`` tokens.
        lengths_trained: rows that were trained, each once.
        late_samples: episodes handed in that nobody waited for.
        stale_tokens: sampled tokens lost to the staleness bound, by cause.
        lost_rows: rows whose payload a crash destroyed.
        failures: groups that failed since the run was started or resumed, by kind.
        filtered_tasks: tasks given up on, since they break their environment.
        tasks_drawn: from the stream of tasks.
        skipped_rows: malformed rows of each task source.
        paused: why the run is paused; empty if it is not.
        kept_from: batches of versions before this one are kept no more, so that the learner cannot come back to before it.
        steps_trained: training steps done in all, each once.
    """

    version: PolicyVersion
    ledger: LedgerCounts
    payload_bytes: int
    kept_batches: int
    kept_bytes: int
    held: tuple[HeldGroups, ...]
    lengths_issued: tuple[int, ...]
    lengths_trained: tuple[int, ...]
    late_samples: int
    stale_tokens: StaleTokens
    lost_rows: int
    failures: Mapping[FailureKind, int]
    filtered_tasks: tuple[TaskId, ...]
    tasks_drawn: int
    skipped_rows: Mapping[str, int]
    paused: str = ""
    kept_from: PolicyVersion = PolicyVersion(0)
    steps_trained: int = 0


class Lengths(msgspec.Struct):
    """A histogram over lengths by their number of binary digits."""

    counts: list[int] = []

    def add(self, length: int) -> None:
        """Count a row of ``length`` tokens."""
        digits = length.bit_length()
        counts = self.counts
        if digits >= len(counts):
            counts.extend([0] * (digits + 1 - len(counts)))
        counts[digits] += 1


class _Cell(msgspec.Struct):
    groups: int
    since: float


class Held(msgspec.Struct):
    """Groups that have not ended, by birth and state."""

    by_version: dict[PolicyVersion, dict[GroupState, _Cell]] = {}

    def enter(self, birth: PolicyVersion, state: GroupState, now: float) -> None:
        """One more group is there."""
        cells = self.by_version.get(birth)
        if cells is None:
            cells = self.by_version[birth] = {}
        cell = cells.get(state)
        if cell is None:
            cells[state] = _Cell(1, now)
        else:
            cell.groups += 1

    def leave(self, birth: PolicyVersion, state: GroupState) -> None:
        """One of the groups is there no more."""
        cells = self.by_version[birth]
        cell = cells[state]
        cell.groups -= 1
        if not cell.groups:
            del cells[state]
            if not cells:
                del self.by_version[birth]

    def listed(self) -> tuple[HeldGroups, ...]:
        """By version, then state."""
        return tuple(
            HeldGroups(version, state, cells[state].groups, cells[state].since)
            for version, cells in sorted(self.by_version.items())
            for state in GroupState
            if state in cells
        )


class Observed(msgspec.Struct):
    """What is counted beside the ledger."""

    lengths_issued: Lengths = msgspec.field(default_factory=Lengths)
    lengths_trained: Lengths = msgspec.field(default_factory=Lengths)
    late_samples: int = 0
    stale_tokens: StaleTokens = msgspec.field(default_factory=StaleTokens)
    lost_rows: int = 0
    filtered_tasks: list[TaskId] = []
