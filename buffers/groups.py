"""The groups that have not ended, and those that kept batches still need, with the payload they hold.

What always holds: ledger, index and statistics agree about every group, because only :meth:`Groups.move` moves one; payload is
freed exactly once, when its group has ended and no kept batch holds it.
"""

from collections import deque
from collections.abc import Iterator

import msgspec

from asyncrl.buffers.group import Group
from asyncrl.buffers.index import GroupIndex
from asyncrl.buffers.ledger import TERMINAL, Ledger
from asyncrl.buffers.staleness import StalenessPolicy
from asyncrl.buffers.state import BufferState, Draw
from asyncrl.buffers.tasks.task_stream import TaskStream
from asyncrl.core.episode_records import EpisodeRecord, PayloadRef
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId, WorkerId
from asyncrl.core.measures.buffer_statistics import GroupState


class Groups:
    """All groups of a buffer.

    Attributes:
        waiting_draws: tasks of expired groups, to be issued again.
        freed: payload that is no longer needed; the caller that frees it empties the list.

    Args:
        state: state of the buffer; only this class changes the parts of it that concern groups.
        size: number of episodes of a new group.
        max_reuse: how often a group may be handed out.
    """

    def __init__(self, state: BufferState, policy: StalenessPolicy, *, size: int, max_reuse: int) -> None:
        self._state, self._size = state, size
        self.ledger = Ledger(state.ledger)
        self.index = GroupIndex(policy, max_reuse)
        self.waiting_draws = deque(state.waiting_draws)
        self.freed: list[PayloadRef] = []
        for group in state.groups.values():
            self.index.enter(group)

    def __getitem__(self, group_id: GroupId) -> Group:
        return self._state.groups[group_id]

    def __iter__(self) -> Iterator[Group]:
        """Iterate over all groups, oldest first. Groups may leave during the iteration."""
        return iter(list(self._state.groups.values()))

    def get(self, group_id: GroupId) -> Group | None:
        """Return the group; None if it has ended or was never issued."""
        return self._state.groups.get(group_id)

    def issue(self, worker: WorkerId, tasks: TaskStream) -> Group:
        """Issue a new group for the task that has waited longest to be issued again, or else for a new task."""
        state = self._state
        if self.waiting_draws:
            draw = self.waiting_draws.popleft()
            task, source, index, attempt = draw.task, draw.source, draw.index, draw.attempt
            group_id = self.ledger.issue(self._size, drawn=False)
        else:
            drawn = tasks.next()
            task, source, index, attempt = drawn.task, drawn.source, drawn.index, 0
            group_id = self.ledger.issue(self._size, drawn=True)
        open_, version = list(range(self._size)), state.version
        group = Group(group_id, task, source, index, self._size, attempt, version, version, worker, open_, {}, [])
        self._number_lease(group)
        state.groups[group_id] = group
        state.held.enter(group.birth, group.state, state.now)
        self.index.enter(group)
        return group

    def issue_again(self, worker: WorkerId) -> Group | None:
        """Let the oldest failed group run again, with its missing episodes; None if no group has failed."""
        group_id = self.index.oldest_failed()
        if group_id is None:
            return None
        group, version = self[group_id], self._state.version
        birth = min(version, group.oldest_finished()) if group.records else version
        missing = group.missing()
        self.move(group, GroupState.RUNNING, birth=birth, worker=worker)
        self.ledger.issued_again(len(missing))
        group.open, group.version, group.broken_by = missing, version, []
        group.leases += 1
        self._number_lease(group)
        return group

    def _number_lease(self, group: Group) -> None:
        self._state.leases += 1
        group.leased = self._state.leases

    def finish_episode(self, group: Group, record: EpisodeRecord) -> None:
        """Take in a finished episode of a running group."""
        group.open.remove(record.sample_index)
        # An engine may have a version shortly before it is published; no episode is committed before the version of its
        # tokens.
        committed_version = max(self._state.version, record.sampled[-1][0])
        group.records[record.sample_index] = msgspec.structs.replace(record, committed_version=committed_version)
        self._state.payload_bytes += record.payload.size
        self.ledger.finished()

    def move(
        self,
        group: Group,
        to: GroupState,
        why: str = "",
        example: str = "",
        *,
        birth: PolicyVersion | None = None,
        uses: int | None = None,
        worker: WorkerId | None = None,
    ) -> None:
        """Move a group to another state, and change the given fields, on which the index depends.

        Raises:
            LedgerError: its state does not allow the move.
        """
        state, before, born = self._state, group.state, group.birth
        self.index.leave(group)
        self.ledger.move(group, to, why, example)
        if birth is not None:
            group.birth = birth
        if uses is not None:
            group.uses = uses
        if worker is not None:
            group.worker = worker
        if to not in TERMINAL:
            state.held.enter(group.birth, to, state.now)
        state.held.leave(born, before)
        self.index.enter(group)

    def end(self, group: Group, to: GroupState, why: str = "", example: str = "") -> None:
        """End a group. If it expired, its task is issued again later."""
        self.move(group, to, why, example)
        group.open = []
        size = group.bytes()
        self._state.payload_bytes -= size
        if to is GroupState.EXPIRED:
            self.waiting_draws.append(Draw(group.task, group.source, group.task_index, group.attempt))
        if group.kept:
            self._state.kept_bytes += size
        else:
            self._forget(group)

    def keep_no_longer(self, group: Group) -> None:
        """Note that one of the kept batches that hold the group is no longer kept."""
        group.kept -= 1
        if not group.kept and group.state in TERMINAL:
            self._state.kept_bytes -= group.bytes()
            self._forget(group)

    def _forget(self, group: Group) -> None:
        del self._state.groups[group.id]
        self.freed.extend(group.payload())

    def lose_records(self, group: Group, indexes: list[int]) -> None:
        """Drop finished episodes whose payload was destroyed."""
        state = self._state
        refs = [group.records[index].payload for index in indexes]
        # The bytes may still be there, but damaged; then their space must be freed.
        self.freed.extend(refs)
        size = sum(ref.size for ref in refs)
        if group.state in TERMINAL:
            state.kept_bytes -= size
        else:
            state.payload_bytes -= size
            self.ledger.lost(group, len(indexes))
        self.index.leave(group)
        for index in indexes:
            del group.records[index]
        if group.state is GroupState.FAILED and group.records:
            state.held.leave(group.birth, group.state)
            group.birth = group.oldest_finished()
            state.held.enter(group.birth, group.state, state.now)
        self.index.enter(group)

    def blockers(self) -> list[tuple[GroupId, TaskId, WorkerId | None]]:
        """List unfinished groups, oldest tokens first: group, task, and the worker that generates it (None if nobody does)."""
        groups = (self[group_id] for group_id in self.index.waited_for())
        return [(g.id, g.task.id, g.worker if g.state is GroupState.RUNNING else None) for g in groups]

    def live_payload(self) -> Iterator[PayloadRef]:
        """Iterate over the references of all payload that is still needed, each once."""
        return (ref for group in self._state.groups.values() for ref in group.payload())
