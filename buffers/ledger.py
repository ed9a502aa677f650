"""The ledger: every group, episode and draw of a task is in exactly one state, and the states add up to what was issued.

``issued == sum of all states`` is checked after every operation in constant time: counters move, and nothing is
scanned. Of groups that have ended, only the counters remain.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from asyncrl.buffers.group import Group
from asyncrl.core.errors import LedgerError
from asyncrl.core.ids import GroupId
from asyncrl.core.measures.buffer_statistics import GroupState, LedgerCounts, TaskCounts, TrajectoryCounts

EXAMPLE_LENGTH = 500
"""Number of characters kept of a reason's last example."""


class TrajectoryState(StrEnum):
    """State of one episode of a group."""

    RUNNING = "running"
    COMMITTED = "committed"
    """It is finished, and its group is not in a batch yet."""
    TAKEN = "taken"
    TRAINED = "trained"
    FILTERED = "filtered"
    EXPIRED = "expired"
    FAILED = "failed"
    """It was given back and will be issued again."""
    MISSING = "missing"
    """It was given back, and its group went on, or ended, without it."""


class TaskState(StrEnum):
    """State of one draw of a task."""

    RUNNING = "running"
    """It has a group that has not ended."""
    WAITING = "waiting"
    """Its group expired; the task is issued again before new ones are drawn."""
    TRAINED = "trained"
    FILTERED = "filtered"


_NEXT_STATES = {
    GroupState.RUNNING: {GroupState.COMMITTED, GroupState.FILTERED, GroupState.EXPIRED, GroupState.FAILED},
    GroupState.FAILED: {GroupState.RUNNING, GroupState.EXPIRED},
    GroupState.COMMITTED: {GroupState.TAKEN, GroupState.TRAINED, GroupState.EXPIRED, GroupState.FAILED},
    GroupState.TAKEN: {GroupState.TRAINED, GroupState.COMMITTED, GroupState.EXPIRED},
}
"""The states that a group may move to, by its state. States that are not a key here are terminal."""

TERMINAL = frozenset(GroupState) - _NEXT_STATES.keys()

_FINISHED = {
    GroupState.RUNNING: TrajectoryState.COMMITTED,
    GroupState.FAILED: TrajectoryState.COMMITTED,
    GroupState.COMMITTED: TrajectoryState.COMMITTED,
    GroupState.TAKEN: TrajectoryState.TAKEN,
    GroupState.TRAINED: TrajectoryState.TRAINED,
    GroupState.FILTERED: TrajectoryState.FILTERED,
    GroupState.EXPIRED: TrajectoryState.EXPIRED,
}
"""The state of the finished episodes of a group, by the group's state."""

_ABSENT = {
    state: TrajectoryState.FAILED if state in (GroupState.RUNNING, GroupState.FAILED) else TrajectoryState.MISSING
    for state in GroupState
}
"""The state of the episodes that were given back, by the group's state."""

_TASK = {
    GroupState.TRAINED: TaskState.TRAINED,
    GroupState.FILTERED: TaskState.FILTERED,
    GroupState.EXPIRED: TaskState.WAITING,
}
"""The state of the task of a group that has ended, by the group's state."""

State = TypeVar("State", bound=StrEnum)


class Tally(Generic[State]):
    """Counts how many of something are in each state."""

    def __init__(self, what: str, counts: dict[State, int]) -> None:
        self._what, self._counts = what, counts
        self.issued = sum(counts.values())

    def add(self, state: State, count: int = 1) -> None:
        """Issue ``count`` more in ``state``."""
        self.issued += count
        self._counts[state] += count

    def move(self, before: State, after: State, count: int = 1) -> None:
        """Move ``count`` from one state to another.

        Raises:
            LedgerError: fewer than ``count`` are in ``before``; nothing was moved.
        """
        counts = self._counts
        if counts[before] < count:
            raise LedgerError(
                f"{count} {self._what} cannot leave {before}: {counts[before]} are there; this is a bug in the buffer"
            )
        counts[before] -= count
        counts[after] += count
        if sum(counts.values()) != self.issued:
            raise LedgerError(f"{self.issued} {self._what} issued, {counts} accounted for; this is a bug in the buffer")

    def __getitem__(self, state: State) -> int:
        return self._counts[state]


class LedgerState(msgspec.Struct):
    """The whole state of a ledger. There are only a few fixed ``reasons``, so nothing here grows with the run."""

    groups: dict[GroupState, int] = msgspec.field(default_factory=lambda: dict.fromkeys(GroupState, 0))
    trajectories: dict[TrajectoryState, int] = msgspec.field(default_factory=lambda: dict.fromkeys(TrajectoryState, 0))
    tasks: dict[TaskState, int] = msgspec.field(default_factory=lambda: dict.fromkeys(TaskState, 0))
    reasons: dict[str, int] = {}
    examples: dict[str, str] = {}


class Ledger:
    """Counts everything exactly once. Only this class changes the state of a group.

    Args:
        state: owned by the ledger from now on.
    """

    def __init__(self, state: LedgerState) -> None:
        self._state = state
        self.groups = Tally("groups", state.groups)
        self.trajectories = Tally("trajectories", state.trajectories)
        self.tasks = Tally("tasks", state.tasks)

    def issue(self, size: int, *, drawn: bool) -> GroupId:
        """Count a new group of ``size`` running episodes. Its task was just ``drawn``, or waited to be issued again."""
        group_id = GroupId(self.groups.issued)
        if drawn:
            self.tasks.add(TaskState.RUNNING)
        else:
            self.tasks.move(TaskState.WAITING, TaskState.RUNNING)
        self.groups.add(GroupState.RUNNING)
        self.trajectories.add(TrajectoryState.RUNNING, size)
        return group_id

    def issued_again(self, episodes: int) -> None:
        """Count the missing episodes of a failed group as running again."""
        self.trajectories.move(TrajectoryState.FAILED, TrajectoryState.RUNNING, episodes)

    def finished(self) -> None:
        """Count an episode of a running group as handed in."""
        self.trajectories.move(TrajectoryState.RUNNING, TrajectoryState.COMMITTED)

    def given_back(self, episodes: int) -> None:
        """Count episodes of a running group as given back."""
        self.trajectories.move(TrajectoryState.RUNNING, TrajectoryState.FAILED, episodes)

    def lost(self, group: Group, episodes: int) -> None:
        """Count finished episodes of ``group`` as lost: their payload was destroyed."""
        self.trajectories.move(_FINISHED[group.state], _ABSENT[group.state], episodes)

    def move(self, group: Group, to: GroupState, why: str = "", example: str = "") -> None:
        """Move a group, with all its episodes, to another state.

        Args:
            group: as it is before the move.
            why: the reason, one of a few fixed texts; empty if it is not to be counted.
            example: details of this case.

        Raises:
            LedgerError: its state does not allow the move.
        """
        state = group.state
        if to not in _NEXT_STATES.get(state, ()):
            allowed = ", ".join(sorted(_NEXT_STATES.get(state, ()))) or "nothing, it has ended"
            raise LedgerError(f"group {group.id} is {state} and cannot become {to}; allowed: {allowed}")
        self.groups.move(state, to)
        finished, running = len(group.records), len(group.open)
        absent = group.size - finished - running
        if finished and _FINISHED[state] is not _FINISHED[to]:
            self.trajectories.move(_FINISHED[state], _FINISHED[to], finished)
        if absent and _ABSENT[state] is not _ABSENT[to]:
            self.trajectories.move(_ABSENT[state], _ABSENT[to], absent)
        if running:
            self.trajectories.move(TrajectoryState.RUNNING, _FINISHED[to], running)
        if to in _TASK:
            self.tasks.move(TaskState.RUNNING, _TASK[to])
        group.state = to
        if why:
            self._count_reason(f"{to}: {why}", example)

    def _count_reason(self, reason: str, example: str) -> None:
        self._state.reasons[reason] = self._state.reasons.get(reason, 0) + 1
        if example:
            self._state.examples[reason] = example[:EXAMPLE_LENGTH]

    def counts(self) -> LedgerCounts:
        """Return all counters."""
        state = self._state
        return LedgerCounts(
            issued=self.groups.issued,
            reasons=dict(state.reasons),
            examples=dict(state.examples),
            trajectories=TrajectoryCounts(self.trajectories.issued, **_by_name(state.trajectories)),
            tasks=TaskCounts(self.tasks.issued, **_by_name(state.tasks)),
            **_by_name(state.groups),
        )


def _by_name(counts: Mapping[State, int]) -> dict[str, int]:
    return {state.value: count for state, count in counts.items()}
