"""Index of the groups: finds the groups that need an action, without looking at the others.

What always holds: the answers depend only on which groups are in the index, not on the order in which they entered, so
a restored buffer behaves exactly like the original. A group leaves the index before any of its fields that the index
uses changes, and enters it again afterwards. There are never more buckets than versions that live groups have, and no
bucket is empty.
"""

import heapq
from collections.abc import Iterator

from asyncrl.buffers.group import Group
from asyncrl.buffers.ready import Ready, ReadyGroup
from asyncrl.buffers.staleness import StalenessPolicy
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.measures.buffer_statistics import GroupState


class VersionBuckets:
    """Buckets of group ids, one for each version. A group is in at most one; the caller remembers which."""

    def __init__(self) -> None:
        self._buckets: dict[PolicyVersion, dict[GroupId, None]] = {}
        # A heap of the buckets' versions. Some may have lost their bucket; they are dropped when they come to the top.
        self._versions: list[PolicyVersion] = []

    def add(self, version: PolicyVersion, group_id: GroupId) -> None:
        """Put a group into the bucket of ``version``."""
        bucket = self._buckets.get(version)
        if bucket is None:
            bucket = self._buckets[version] = {}
            heapq.heappush(self._versions, version)
        bucket[group_id] = None

    def remove(self, version: PolicyVersion, group_id: GroupId) -> None:
        """Take a group, which must be there, out of the bucket of ``version``."""
        bucket = self._buckets[version]
        del bucket[group_id]
        if not bucket:
            del self._buckets[version]
            while self._versions and self._versions[0] not in self._buckets:
                heapq.heappop(self._versions)
            if len(self._versions) > 2 * len(self._buckets) + 8:
                self._versions = sorted(self._buckets)

    def has_below(self, version: PolicyVersion) -> bool:
        """Whether a group is in a bucket older than ``version``."""
        return bool(self._versions) and self._versions[0] < version

    def count_below(self, version: PolicyVersion) -> int:
        """Count the groups in buckets older than ``version``."""
        return sum(len(self._buckets[v]) for v in self._below(version))

    def below(self, version: PolicyVersion) -> list[GroupId]:
        """List the groups in buckets older than ``version``: oldest version first, then by id."""
        return [group_id for v in self._below(version) for group_id in self.of(v)]

    def _below(self, version: PolicyVersion) -> list[PolicyVersion]:
        return [v for v in self if v < version] if self.has_below(version) else []

    def of(self, version: PolicyVersion) -> list[GroupId]:
        """List the groups of a version by id."""
        return sorted(self._buckets.get(version, ()))

    def count(self, version: PolicyVersion) -> int:
        """Count the groups of a version."""
        return len(self._buckets.get(version, ()))

    def __iter__(self) -> Iterator[PolicyVersion]:
        """Iterate over the versions that have a bucket, oldest first."""
        return iter(sorted(self._buckets))


class GroupIndex:
    """Finds the groups of a buffer by what must be done with them.

    Attributes:
        ready: groups that may be trained.
        deciding: the same groups, by the version that decides when they expire.
        unused: the ready groups that were never trained, by birth; only filled under ``on_stale: wait``.
        unfinished: running groups, and failed groups with finished episodes, by birth.
        supply: how many trainings the running, committed and returning groups can still be used for.
        returning: number of groups in training that will be ready once more.
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
        # A heap of all failed groups. It may also hold groups that run again; they are dropped when they come to the top.
        self._failed_ids: list[GroupId] = []

    def enter(self, group: Group) -> None:
        """Add a group according to its state."""
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
        """Remove a group; it must be as it was when it entered."""
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
        """Return the groups whose episodes the worker generates. Do not change the set."""
        return self._by_worker.get(worker, set())

    def workers(self) -> list[WorkerId]:
        """Return the workers that generate episodes now."""
        return sorted(self._by_worker)

    def oldest_failed(self) -> GroupId | None:
        """Return the failed group that is issued again next; None if no group has failed."""
        return self._failed_ids[0] if self._failed_ids else None

    def waited_for(self) -> Iterator[GroupId]:
        """Iterate over all groups with unfinished episodes: oldest tokens first, groups without tokens last."""
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
        """Return the groups that the batch of ``version`` must hold, those with the earliest deadline first.

        Older groups are preferred where deadlines leave a choice. No group is forced that can still be trained later.
        """
        forced: list[GroupId] = []
        candidates = ((born, group_id) for born in self.unused for group_id in self.unused.of(born))
        for _, n in self._demands(version):
            # Candidates come oldest first, and can_force has checked that enough of them were born early enough.
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
