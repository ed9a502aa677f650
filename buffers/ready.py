"""Ready groups: those that may be trained, oldest first, as a sampler sees them."""

import heapq
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from asyncrl.core.ids import GroupId, PolicyVersion
from asyncrl.core.reward_spread import has_spread


class ReadyGroup(msgspec.Struct, frozen=True, gc=False):
    """A complete group, as far as a sampler knows it.

    Attributes:
        source: name of the source that its task was drawn from.
        oldest_sampled, newest_sampled: the oldest and the newest policy version of its tokens.
        advantage: mean over its episodes of ``|reward - mean| / standard deviation``; 0 if the rewards have no spread.
        uses: how often it was handed out already.
    """

    group_id: GroupId
    source: str
    oldest_sampled: PolicyVersion
    newest_sampled: PolicyVersion
    advantage: float
    uses: int


class Ready(Mapping[GroupId, ReadyGroup]):
    """Mapping of group ids to ready groups, iterated oldest group first. :meth:`oldest` looks only at what it returns."""

    def __init__(self) -> None:
        self._groups: dict[GroupId, ReadyGroup] = {}
        # A heap of all ready groups. It may hold some twice, and some that were removed; these are dropped on the way.
        self._ids: list[GroupId] = []

    def add(self, group: ReadyGroup) -> None:
        """Add a group."""
        self._groups[group.group_id] = group
        heapq.heappush(self._ids, group.group_id)
        if len(self._ids) > 2 * len(self._groups) + 64:
            self._ids = sorted(self._groups)

    def remove(self, group_id: GroupId) -> None:
        """Remove a group."""
        del self._groups[group_id]
        while self._ids and self._ids[0] not in self._groups:
            heapq.heappop(self._ids)

    def oldest(self, n: int) -> list[GroupId]:
        """List the ``n`` oldest groups, or all if there are fewer."""
        found: list[GroupId] = []
        while self._ids and len(found) < n:
            group_id = heapq.heappop(self._ids)
            if group_id in self._groups and (not found or found[-1] != group_id):
                found.append(group_id)
        for group_id in found:
            heapq.heappush(self._ids, group_id)
        return found

    @contextmanager
    def without(self, group_ids: Collection[GroupId]) -> Iterator["Ready"]:
        """Take these groups out of the mapping for as long as the context lasts."""
        lacking = [self._groups[group_id] for group_id in group_ids]
        for group_id in group_ids:
            self.remove(group_id)
        try:
            yield self
        finally:
            for group in lacking:
                self.add(group)

    def __getitem__(self, group_id: GroupId) -> ReadyGroup:
        return self._groups[group_id]

    def __iter__(self) -> Iterator[GroupId]:
        return iter(sorted(self._groups))

    def __len__(self) -> int:
        return len(self._groups)


def mean_absolute_advantage(rewards: Sequence[float]) -> float:
    """Return the mean of ``|reward - mean| / standard deviation`` (of the population); 0 without spread."""
    if not has_spread(rewards):
        return 0.0
    mean = sum(rewards) / len(rewards)
    away = [abs(reward - mean) for reward in rewards]
    deviation = math.sqrt(sum(distance * distance for distance in away) / len(away))
    return sum(away) / len(away) / deviation
