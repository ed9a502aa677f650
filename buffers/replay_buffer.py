"""The versioned replay buffer: tickets out, trajectories in, staleness-bounded batches out.

A plain class without waits, clocks or threads: callers are told "not yet" and decide how to wait. What always holds:
* every group issued is in exactly one ledger state;
* a task whose group failed or expired is issued again before any new task (or filtered and named after ``max_attempts``);
* groups are handed out oldest first, and no row of a batch counts a token older than the staleness bound;
* payload is freed exactly when its group is trained, filtered or expired.
"""

import logging
from collections import Counter, deque
from collections.abc import Iterable, Sequence

import msgspec

from asyncrl.core.batch import Batch, RowRecord
from asyncrl.core.errors import BudgetExceeded, FailureKind, LedgerError
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.task import Task
from asyncrl.core.ticket import Ticket
from asyncrl.core.trajectory import Trajectory, decode
from buffers.ledger import GroupState, Ledger, LedgerCounts
from buffers.staleness import StalenessPolicy, sampled_versions, trainable_tokens
from buffers.tasks import TaskSource

logger = logging.getLogger(__name__)


class _Row(msgspec.Struct):
    trajectory: Trajectory
    payload: bytes
    committed_version: PolicyVersion


class _Group(msgspec.Struct):
    ticket: Ticket
    rows: dict[int, _Row] = {}
    oldest_sampled: PolicyVersion = PolicyVersion(-1)
    newest_sampled: PolicyVersion = PolicyVersion(-1)


class BufferStatistics(msgspec.Struct, frozen=True):
    """What the buffer holds. ``payload_bytes`` is of all rows held; ``filtered_tasks`` names tasks given up on."""

    version: PolicyVersion
    ledger: LedgerCounts
    payload_bytes: int
    filtered_tasks: tuple[TaskId, ...]


class ReplayBuffer:
    """See the module's docstring.

    Args:
        recipe: its ``batch``, ``buffer`` and ``steps`` are used; no more groups are issued than ``steps`` can train.
        tasks: where tasks come from.
    """

    def __init__(self, recipe: Recipe, tasks: TaskSource) -> None:
        self._batch, self._limits = recipe.batch, recipe.buffer
        self._wanted = recipe.steps * recipe.batch.groups_per_step
        self._policy = StalenessPolicy(recipe.buffer, recipe.batch)
        self._tasks = tasks
        self._ledger = Ledger()
        self._groups: dict[GroupId, _Group] = {}
        self._ready: dict[GroupId, None] = {}
        self._again: deque[tuple[Task, int]] = deque()
        self._failures: Counter[FailureKind] = Counter()
        self._filtered_tasks: list[TaskId] = []
        self._payload_bytes = 0
        self._groups_trained_at: dict[PolicyVersion, int] = {}
        self.version = PolicyVersion(0)
        """The clock."""

    def advance(self, version: PolicyVersion) -> None:
        """Move the clock.

        Raises:
            LedgerError: it would not move by exactly one.
        """
        if version != self.version + 1:
            raise LedgerError(f"the clock stands at version {self.version} and cannot move to {version}; it moves by one")
        self.version = version
        self._groups_trained_at.pop(PolicyVersion(version - 1), None)

    def room(self) -> int:
        """Tickets that may be issued now: bounded by the pace, and by what the rest of the run can train."""
        waiting = self._ledger.count(GroupState.RUNNING) + self._ledger.count(GroupState.COMMITTED)
        outstanding = waiting + sum(self._groups_trained_at.values())
        consumed = self._ledger.count(GroupState.TAKEN) + self._ledger.count(GroupState.TRAINED)
        return max(0, min(self._policy.max_outstanding - outstanding, self._wanted - consumed - waiting))

    def issue(self, limit: int) -> list[Ticket]:
        """Up to ``limit`` tickets, as far as there is room; tasks waiting for another attempt come first."""
        tickets = []
        for _ in range(min(limit, self.room())):
            task, attempt = self._again.popleft() if self._again else (self._tasks.next(), 0)
            ticket = Ticket(self._ledger.issue(), task, self._batch.group_size, attempt, self.version)
            self._groups[ticket.group_id] = _Group(ticket)
            tickets.append(ticket)
        return tickets

    def commit(self, payloads: Sequence[bytes]) -> None:
        """Take in encoded trajectories; a group whose samples are all in becomes committed.

        Raises:
            ValueError: a trajectory is malformed.
            LedgerError: its group is not running, or the sample was handed in before.
        """
        for payload in payloads:
            self._commit_row(decode(payload), payload)

    def _commit_row(self, trajectory: Trajectory, payload: bytes) -> None:
        trajectory.check()
        group_id, index = trajectory.group_id, trajectory.sample_index
        if self._ledger.state(group_id) is not GroupState.RUNNING:
            raise LedgerError(f"group {group_id} is {self._ledger.state(group_id)}; sample {index} of it came too late")
        group = self._groups[group_id]
        if index in group.rows or not 0 <= index < group.ticket.size:
            raise LedgerError(
                f"sample {index} of group {group_id} was handed in before, or is not one of its {group.ticket.size}"
            )
        # An engine may have a version a moment before the clock does; what it then finishes was committed no earlier than that.
        committed = max({self.version, *sampled_versions([trajectory])})
        group.rows[index] = _Row(trajectory, payload, committed)
        self._payload_bytes += len(payload)
        if len(group.rows) == group.ticket.size:
            self._complete(group_id, group)

    def _complete(self, group_id: GroupId, group: _Group) -> None:
        versions = sampled_versions(row.trajectory for row in group.rows.values())
        if not versions:
            self.fail(group_id, FailureKind.DATA, "the policy sampled not a single token; does the prompt fit the context?")
            return
        group.oldest_sampled, group.newest_sampled = min(versions), max(versions)
        self._ledger.move(group_id, GroupState.COMMITTED)
        self._ready[group_id] = None

    def fail(self, group_id: GroupId, kind: FailureKind, reason: str) -> None:
        """Give a running group back. Its task is issued again; one that broke its environment ``max_attempts`` times is filtered.

        Raises:
            BudgetExceeded: more than ``max_failures`` groups failed in this way.
        """
        ticket = self._groups[group_id].ticket if group_id in self._groups else None
        gives_up = kind is FailureKind.DATA and ticket is not None and ticket.attempt + 1 >= self._limits.max_attempts
        self._ledger.move(group_id, GroupState.FILTERED if gives_up else GroupState.FAILED, f"{kind}: {reason}")
        assert ticket is not None  # the ledger refuses groups that are not live
        self._free(group_id)
        if gives_up:
            self._filtered_tasks.append(ticket.task.id)
            logger.warning("task %s filtered after %d attempts: %s", ticket.task.id, ticket.attempt + 1, reason)
        else:
            self._again.append((ticket.task, ticket.attempt + (kind is FailureKind.DATA)))
        self._failures[kind] += 1
        if self._failures[kind] > self._limits.max_failures:
            raise BudgetExceeded(
                f"{self._failures[kind]} groups failed ({kind}), more than buffer.max_failures={self._limits.max_failures}; "
                f"the last, of task {ticket.task.id}: {reason}"
            )

    def take(self, version: PolicyVersion, groups: int) -> Batch | None:
        """The ``groups`` oldest committed groups to train at ``version``, or None while there are too few.

        Groups over the staleness bound are expired first, by the recipe's ``on_stale``, and their tasks issued again.
        """
        self._expire(version)
        if len(self._ready) < groups:
            return None
        chosen = sorted(self._ready)[:groups]
        oldest_version = self._policy.oldest_version(version)
        rows: list[RowRecord] = []
        for group_id in chosen:
            del self._ready[group_id]
            self._ledger.move(group_id, GroupState.TAKEN)
            group = self._groups[group_id]
            rows.extend(_record(group.rows[index], oldest_version) for index in sorted(group.rows))
        self._groups_trained_at[version] = self._groups_trained_at.get(version, 0) + groups
        return Batch(version, oldest_version, tuple(rows))

    def _expire(self, version: PolicyVersion) -> None:
        for group_id in list(self._ready):
            group = self._groups[group_id]
            if self._policy.has_expired(group.oldest_sampled, group.newest_sampled, version):
                del self._ready[group_id]
                self._ledger.move(group_id, GroupState.EXPIRED, f"older than {self._limits.max_staleness} versions")
                self._again.append((group.ticket.task, group.ticket.attempt))
                self._free(group_id)

    def payload(self, rows: Iterable[tuple[GroupId, int]]) -> list[bytes]:
        """The encoded trajectories of rows that were taken.

        Raises:
            LedgerError: a row is not held.
        """
        found = []
        for group_id, index in rows:
            if group_id not in self._groups or index not in self._groups[group_id].rows:
                raise LedgerError(f"sample {index} of group {group_id} is not held; was its batch marked as trained already?")
            found.append(self._groups[group_id].rows[index].payload)
        return found

    def trained(self, batch: Batch) -> None:
        """Mark the groups of a batch as trained and free their payload."""
        for group_id in dict.fromkeys(row.group_id for row in batch.rows):
            self._ledger.move(group_id, GroupState.TRAINED)
            self._free(group_id)

    def _free(self, group_id: GroupId) -> None:
        self._payload_bytes -= sum(len(row.payload) for row in self._groups.pop(group_id).rows.values())

    def running(self) -> list[Ticket]:
        """Tickets still being generated, oldest first."""
        return [g.ticket for i, g in self._groups.items() if self._ledger.state(i) is GroupState.RUNNING]

    def statistics(self) -> BufferStatistics:
        """What is held, and the whole ledger."""
        return BufferStatistics(self.version, self._ledger.counts(), self._payload_bytes, tuple(self._filtered_tasks))


def _record(row: _Row, oldest_version: PolicyVersion) -> RowRecord:
    trajectory = row.trajectory
    return RowRecord(
        group_id=trajectory.group_id,
        task_id=trajectory.task_id,
        sample_index=trajectory.sample_index,
        length=len(trajectory),
        loss_tokens=trainable_tokens(trajectory, oldest_version),
        reward=trajectory.reward,
        committed_version=row.committed_version,
    )
