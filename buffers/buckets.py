"""Groups sorted into buckets by policy version, so that old groups are found without looking at newer ones.

There are never more buckets than versions that live groups have, and no bucket is empty.
"""

import heapq
from collections.abc import Iterator

from asyncrl.core.ids import GroupId, PolicyVersion


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
