"""The whole state of a replay buffer as one value, which a snapshot holds. Everything else is derived from it.

Running counts of what it has done and what it holds are a part of it.
"""

import msgspec

from asyncrl.buffers.group import Group
from asyncrl.buffers.ledger import LedgerState
from asyncrl.buffers.limits import Limits
from asyncrl.core.batch import Batch
from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.measures.buffer_statistics import GroupState, HeldGroups, StaleTokens
from asyncrl.core.task import Task


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


class Draw(msgspec.Struct, frozen=True, array_like=True):
    """A task whose group expired and that is issued again: the ``index``-th of its source.

    ``attempt`` is as in :class:`~asyncrl.buffers.group.Group`.
    """

    task: Task
    source: str
    index: int
    attempt: int


class KeptBatch(msgspec.Struct):
    """A batch that was handed out and may be asked for again.

    Attributes:
        groups: ids of the groups in the batch, in order.
        trained: whether the learner has trained it.
    """

    batch: Batch
    groups: list[GroupId]
    trained: bool = False


class BufferState(msgspec.Struct):
    """The state of a replay buffer.

    Attributes:
        steps: training steps of the run; never fewer than before.
        limits: what a resume may change.
        version: the published version.
        depth: the pipeline depth after its first change; None before that, when the recipe's first depth counts.
        now: the last time that a caller gave, in seconds since the epoch.
        groups: the groups that have not ended or are in a kept batch, oldest first.
        kept: batches handed out since the learner's last checkpoint.
        last_taken: version of the newest batch handed out; -1 before the first.
        forgotten: batches of versions before this one are no longer kept.
        unpublished_batches: number of groups in each batch whose training step is not published yet.
        trainings: how many groups were handed out so far; a group counts once each time.
        waiting_draws: tasks to be issued again, in order.
        failures: number of failures since the run was started or resumed, by kind.
        leases: how often a group was leased so far.
        incident_leases: value of ``leases`` when a failure by an incident last counted, by the incident's name.
        filtered_in_a_row: groups that filters have left out since one was last kept.
        payload_bytes: bytes of groups that have not ended.
        kept_bytes: bytes of groups that have ended and are in a kept batch.
        tasks: state of the task stream; only set in a snapshot.
        fingerprint: fingerprint of the task stream; only set in a snapshot.
    """

    steps: int
    limits: Limits
    version: PolicyVersion = PolicyVersion(0)
    depth: int | None = None
    now: float = 0.0
    groups: dict[GroupId, Group] = {}
    kept: dict[PolicyVersion, KeptBatch] = {}
    last_taken: PolicyVersion = PolicyVersion(-1)
    forgotten: PolicyVersion = PolicyVersion(0)
    unpublished_batches: dict[PolicyVersion, int] = {}
    trainings: int = 0
    waiting_draws: list[Draw] = []
    failures: dict[FailureKind, int] = msgspec.field(default_factory=lambda: dict.fromkeys(FailureKind, 0))
    payload_bytes: int = 0
    kept_bytes: int = 0
    ledger: LedgerState = msgspec.field(default_factory=LedgerState)
    held: Held = msgspec.field(default_factory=Held)
    observed: Observed = msgspec.field(default_factory=Observed)
    tasks: bytes = b""
    fingerprint: str = ""
    leases: int = 0
    incident_leases: dict[str, int] = {}
    filtered_in_a_row: int = 0
