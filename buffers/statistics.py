"""Running counts of what the buffer has done and what it holds."""

import msgspec

from asyncrl.core.ids import PolicyVersion, TaskId
from asyncrl.core.measures.buffer_statistics import GroupState, HeldGroups, StaleTokens


class Lengths(msgspec.Struct):
    """Histogram of episode lengths, by the number of binary digits of the length in tokens."""

    counts: list[int] = []

    def add(self, length: int) -> None:
        """Count an episode of ``length`` tokens, those of all its trajectories."""
        digits = length.bit_length()
        counts = self.counts
        if digits >= len(counts):
            counts.extend([0] * (digits + 1 - len(counts)))
        counts[digits] += 1


class _Cell(msgspec.Struct):
    groups: int
    since: float


class Held(msgspec.Struct):
    """Counts groups that have not ended, by the version at which they were born and by state."""

    by_version: dict[PolicyVersion, dict[GroupState, _Cell]] = {}

    def enter(self, birth: PolicyVersion, state: GroupState, now: float) -> None:
        """Count one group more."""
        cells = self.by_version.get(birth)
        if cells is None:
            cells = self.by_version[birth] = {}
        cell = cells.get(state)
        if cell is None:
            cells[state] = _Cell(1, now)
        else:
            cell.groups += 1

    def leave(self, birth: PolicyVersion, state: GroupState) -> None:
        """Count one group less."""
        cells = self.by_version[birth]
        cell = cells[state]
        cell.groups -= 1
        if not cell.groups:
            del cells[state]
            if not cells:
                del self.by_version[birth]

    def listed(self) -> tuple[HeldGroups, ...]:
        """List the counts by version, then state."""
        return tuple(
            HeldGroups(version, state, cells[state].groups, cells[state].since)
            for version, cells in sorted(self.by_version.items())
            for state in GroupState
            if state in cells
        )


class Observed(msgspec.Struct):
    """Counts that are not part of the ledger."""

    lengths_issued: Lengths = msgspec.field(default_factory=Lengths)
    lengths_trained: Lengths = msgspec.field(default_factory=Lengths)
    late_samples: int = 0
    stale_tokens: StaleTokens = msgspec.field(default_factory=StaleTokens)
    lost_trajectories: int = 0
    filtered_tasks: list[TaskId] = []
    too_long_tasks: list[TaskId] = []
