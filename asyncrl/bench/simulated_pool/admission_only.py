"""A buffer for comparison, like that of other systems: only admission controls staleness.

Groups are issued at the same pace as by the real buffer, and are trained in the order in which they are finished, with all their
tokens. Nothing looks at how old the tokens are. Only the simulation uses it.
"""

from collections import deque
from collections.abc import Sequence

import msgspec

from asyncrl.buffers.tasks.task_stream import TaskStream
from asyncrl.core.batch import Batch, BatchEpisode
from asyncrl.core.episode_records import EpisodeRecord, PayloadRef
from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.recipe.buffer import BufferConfig, ZeroVarianceFilterConfig
from asyncrl.core.recipe.schema import BatchConfig
from asyncrl.core.ticket import Ticket


class _Group(msgspec.Struct):
    ticket: Ticket
    worker: WorkerId
    finished: dict[int, EpisodeRecord] = {}


class AdmissionOnly:
    """A buffer that admission alone controls. It also stands in for the real buffer's ``batches``.

    If an episode fails, its whole group is dropped and issued again.
    """

    def __init__(self, batch: BatchConfig, limits: BufferConfig, tasks: TaskStream) -> None:
        self._size, self._tasks = batch.group_size, tasks
        self._most = (limits.largest_depth + 1) * batch.groups_per_step
        self._filters = any(isinstance(chosen, ZeroVarianceFilterConfig) for chosen in limits.filters)
        self.batches = self
        self._issued = 0
        self._running: dict[GroupId, _Group] = {}
        self._ready: deque[_Group] = deque()
        self._again: deque[Ticket] = deque()
        self._taken: dict[PolicyVersion, list[_Group]] = {}
        self._freed: list[PayloadRef] = []
        self.version = PolicyVersion(0)

    def room(self) -> int:
        """Return how many groups the pace allows to issue now; groups in training count as outstanding."""
        return self._most - len(self._running) - len(self._ready) - sum(map(len, self._taken.values()))

    def lease(self, worker: WorkerId, limit: int, now: float) -> list[Ticket]:
        """Issue tickets: failed groups first, with the same id, then new ones."""
        tickets = []
        for _ in range(min(limit, self.room())):
            if self._again:
                ticket = msgspec.structs.replace(self._again.popleft(), version=self.version)
            else:
                ticket = Ticket(GroupId(self._issued), self._tasks.next().task, tuple(range(self._size)), 0, self.version)
                self._issued += 1
            self._running[ticket.group_id] = _Group(ticket, worker)
            tickets.append(ticket)
        return tickets

    def commit(self, records: Sequence[EpisodeRecord], now: float) -> None:
        """Take in finished episodes; a group that is complete becomes ready or is filtered."""
        for record in records:
            group = self._running.get(record.group_id)
            if group is None:
                self._freed.append(record.payload)
                continue
            group.finished[record.sample_index] = record
            if len(group.finished) == self._size:
                del self._running[record.group_id]
                if self._filters and len({finished.reward for finished in group.finished.values()}) == 1:
                    self._free(group)
                else:
                    self._ready.append(group)

    def fail(self, group_id: GroupId, sample_index: int, kind: FailureKind, reason: str, incident: str = "") -> None:
        """Drop the whole group and issue it again."""
        if group_id in self._running:
            group = self._running.pop(group_id)
            attempt = group.ticket.attempt + (kind is FailureKind.DATA)
            self._free(group)
            self._again.append(msgspec.structs.replace(group.ticket, attempt=attempt))

    def lost(self, worker: WorkerId) -> None:
        """Issue the worker's groups again."""
        for group_id in [group_id for group_id, group in self._running.items() if group.worker == worker]:
            self.fail(group_id, 0, FailureKind.INFRASTRUCTURE, "")

    def unwanted(self, worker: WorkerId, running: Sequence[GroupId]) -> list[GroupId]:
        """Return nothing: no group is ever stopped."""
        return []

    def has_stale(self, version: PolicyVersion) -> bool:
        """Return False: nothing is ever stale."""
        return False

    def expire(self, version: PolicyVersion) -> None:
        """Do nothing: nothing is ever stale."""

    def takeable(self, version: PolicyVersion, groups: int) -> bool:
        """Return whether enough groups are ready."""
        return len(self._ready) >= groups

    def take(self, version: PolicyVersion, groups: int) -> Batch:
        """Hand out the groups that were finished first; every token counts."""
        self._taken[version] = [self._ready.popleft() for _ in range(groups)]
        episodes = [
            BatchEpisode.around(record, group.ticket.task.id, "", 1.0)
            for group in self._taken[version]
            for record in group.finished.values()
        ]
        return Batch(version, PolicyVersion(0), tuple(episodes))

    def trained(self, version: PolicyVersion) -> None:
        """Do nothing: :meth:`advance` frees the payload."""

    def advance(self, version: PolicyVersion) -> None:
        """Publish ``version``, and free the groups that earlier versions trained."""
        self.version = version
        for trained in [trained for trained in self._taken if trained < version]:
            for group in self._taken.pop(trained):
                self._free(group)

    def checkpointed(self, version: PolicyVersion) -> None:
        """Do nothing: no batch is kept."""

    def drain_freed(self) -> list[PayloadRef]:
        """Return the payload that became unnecessary since the last call."""
        freed, self._freed = self._freed, []
        return freed

    def _free(self, group: _Group) -> None:
        self._freed += [sample.payload for sample in group.finished.values()]
