"""Where to find the groups that something is to be done with, without looking at the others.

What always holds: what the index answers is a function of the groups in it, whatever order they came in, so that a buffer that
was restored goes on exactly as the one it was made from. A group leaves before, and enters after, anything that the index looks
at changes.
"""

import heapq
from collections.abc import Iterator

from asyncrl.core.buffer_statistics import GroupState
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from buffers.buckets import VersionBuckets
from buffers.group import Group
from buffers.ready import Ready, ReadyGroup
from buffers.staleness import StalenessPolicy


class GroupIndex:
    """See the module.

    Attributes:
        ready: groups that may be trained.
        deciding: the same, by the version that decides about their end.
        unused: those of them that were never trained, by birth; filled only where they are waited for.
        unfinished: running groups, and failed ones that hold finished episodes, by birth.
        supply: trainings that running, committed and returning groups are good for.
        returning: groups being trained that will be ready once more.
    """

    def __init__(self, policy: StalenessPolicy, max_reuse: int) -> None:
        self._policy, self._max_reuse = policy, max_reuse
        self.ready = Ready()
        self.deciding = VersionBuckets()
        self.unused = VersionBuckets()
        self.unfinished = VersionBuckets()
        self.supply = 0
        self.returning = 0
        self._by_worker: dict[WorkerId, set[GroupId]] = {}
        self._failed: set[GroupId] = set()
        # A heap of all failed groups, and of some that are failed no more: they are dropped when they come to the top.
        self._failed_ids: list[GroupId] = []

    def enter(self, group: Group) -> None:
        """A group is where its state says."""
        state = group.state
        if state is GroupState.RUNNING:
            self.supply += self._max_reuse
            self.unfinished.add(group.birth, group.id)
            held = self._by_worker.get(group.worker)
            if held is None:
                held = self._by_worker[group.worker] = set()
            held.add(group.id)
        elif state is GroupState.COMMITTED:
            self.supply += self._max_reuse - group.uses
            self.ready.add(
                ReadyGroup(group.id, group.source, group.oldest_sampled, group.newest_sampled, group.advantage, group.uses)
            )
            self.deciding.add(self._policy.expiry_version(group.oldest_sampled, group.newest_sampled), group.id)
            if self._policy.waits and not group.uses:
                self.unused.add(group.birth, group.id)
        elif state is GroupState.TAKEN:
            if not group.consumed:
                self.supply += self._max_reuse - group.uses
                self.returning += 1
        elif state is GroupState.FAILED:
            self._failed.add(group.id)
            heapq.heappush(self._failed_ids, group.id)
            if group.records:
                self.unfinished.add(group.birth, group.id)

    def leave(self, group: Group) -> None:
        """Inverse of :meth:`enter`."""
        state = group.state
        if state is GroupState.RUNNING:
            self.supply -= self._max_reuse
            self.unfinished.remove(group.birth, group.id)
            held = self._by_worker[group.worker]
            held.remove(group.id)
            if not held:
                del self._by_worker[group.worker]
        elif state is GroupState.COMMITTED:
            self.supply -= self._max_reuse - group.uses
            self.ready.remove(group.id)
            self.deciding.remove(self._policy.expiry_version(group.oldest_sampled, group.newest_sampled), group.id)
            if self._policy.waits and not group.uses:
                self.unused.remove(group.birth, group.id)
        elif state is GroupState.TAKEN:
            if not group.consumed:
                self.supply -= self._max_reuse - group.uses
                self.returning -= 1
        elif state is GroupState.FAILED:
            self._failed.remove(group.id)
            while self._failed_ids and self._failed_ids[0] not in self._failed:
                heapq.heappop(self._failed_ids)
            if group.records:
                self.unfinished.remove(group.birth, group.id)

    def held_by(self, worker: WorkerId) -> set[GroupId]:
        """Groups of which the worker generates episodes; not to be changed."""
        return self._by_worker.get(worker, set())

    def workers(self) -> list[WorkerId]:
        """Those that generate something."""
        return sorted(self._by_worker)

    def oldest_failed(self) -> GroupId | None:
        """The group to be issued again next."""
        return self._failed_ids[0] if self._failed_ids else None

    def waited_for(self) -> Iterator[GroupId]:
        """All groups that have not all their episodes: those whose tokens are oldest first, then those that hold none."""
        held = [group_id for version in self.unfinished for group_id in self.unfinished.of(version)]
        yield from held
        yield from sorted(self._failed - set(held))

    def can_force(self, version: PolicyVersion) -> bool:
        """Whether the groups that must be trained at ``version`` are ready; see :meth:`StalenessPolicy.demands`."""
        births, ready = iter(self.unused), 0
        born = next(births, None)
        for birth, n in self._demands(version):
            while born is not None and born <= birth:
                ready += self.unused.count(born)
                born = next(births, None)
            if ready < n:
                return False
        return True

    def forced(self, version: PolicyVersion) -> list[GroupId]:
        """Groups that the batch of ``version`` must hold, those of the earliest deadline first.

        Which ones is free as far as the deadlines allow, so that nothing is waited for that can still come later.
        """
        forced: list[GroupId] = []
        candidates = ((born, group_id) for born in self.unused for group_id in self.unused.of(born))
        for _, n in self._demands(version):
            # Candidates come oldest first, and enough of them were born early enough: that was asked for in can_force.
            while len(forced) < n:
                forced.append(next(candidates)[1])
        return forced

    def _demands(self, version: PolicyVersion) -> list[tuple[PolicyVersion, int]]:
        if not self._policy.waits:
            return []
        live = {born: self.unfinished.count(born) for born in self.unfinished}
        for born in self.unused:
            live[born] = live.get(born, 0) + self.unused.count(born)
        return self._policy.demands(version, live)
