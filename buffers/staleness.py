"""The staleness contract, in one pure object: when a ticket may be issued, what may be trained, and what must be trained now.

What always holds:

* no token older than ``max_staleness`` policy versions enters a loss;
* at most ``(pipeline_depth + 1)`` steps of groups are outstanding. A group is outstanding from its ticket until the version
  that its step made is published, so a group issued at version v has fewer than that before it, and taken in order it is
  trained by version ``v + pipeline_depth``;
* under ``wait`` every group is trained whole. As ``pipeline_depth <= max_staleness``, those that must be trained by some version
  always fit into the batches up to it: there is never more to be forced into one batch than it holds.
"""

from collections.abc import Mapping

import msgspec

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.recipe.schema import BatchConfig, BufferConfig


class Load(msgspec.Struct, frozen=True):
    """What a buffer is busy with, as far as it decides about new tickets.

    Attributes:
        waiting: groups that are running or committed.
        failed: groups that wait to be issued again.
        passing: groups of batches whose step is not published yet.
        returning: groups being trained that will be ready once more.
        supply: trainings that the running, committed and returning groups are good for.
        wanted: trainings of groups that the rest of the run will do.
        payload_bytes: held by groups that have not ended.
    """

    waiting: int
    failed: int
    unpublished_batches: int
    returning: int
    supply: int
    wanted: int
    payload_bytes: int


class StalenessPolicy:
    """Pace, guarantee and derived capacities of ``asyncrl.core.recipe.schema.BufferConfig``."""

    def __init__(self, buffer: BufferConfig, batch: BatchConfig) -> None:
        self._on_stale, self._max_staleness = buffer.on_stale, buffer.max_staleness
        self._max_reuse, self._groups_per_step = buffer.max_reuse, batch.groups_per_step
        self._max_bytes = buffer.capacity_mb * 1_000_000
        self.max_outstanding = (buffer.pipeline_depth + 1) * batch.groups_per_step
        """Groups that may be outstanding at once."""

    def room(self, load: Load) -> int:
        """Groups that may be issued now: as many as the pace, the rest of the run and the memory allow, whichever are fewest.

        Neither the rest of the run nor a full memory holds up what a batch needs: enough different groups, and groups that
        failed, whose finished episodes are only set free by the missing ones.
        """
        if load.wanted <= 0:
            return 0
        needed = max(load.failed, self._groups_per_step - load.waiting - load.returning)
        new_trainings = -(-(load.wanted - load.supply) // self._max_reuse)
        useful = max(needed, new_trainings)
        if load.payload_bytes >= self._max_bytes:
            useful = max(load.failed, min(useful, self._groups_per_step - load.waiting))
        return max(0, min(self.max_outstanding - load.waiting - load.unpublished_batches, useful))

    def oldest_version(self, version: PolicyVersion) -> PolicyVersion:
        """The oldest sampling version whose tokens may be trained at ``version``."""
        return PolicyVersion(version - self._max_staleness)

    def expiry_version(self, oldest_sampled: PolicyVersion, newest_sampled: PolicyVersion) -> PolicyVersion:
        """A complete group has expired once this is older than :meth:`oldest_version`.

        Under ``mask`` that is when no token is left within the bound, else as soon as one is over it.
        """
        return newest_sampled if self._on_stale == "mask" else oldest_sampled

    def expired_unfinished_below(self, published: PolicyVersion) -> PolicyVersion | None:
        """Unfinished groups born before this can never be trained from version ``published`` on; None where masking saves all."""
        return None if self._on_stale == "mask" else self.oldest_version(published)

    @property
    def waits(self) -> bool:
        """Whether groups about to cross the bound are waited for."""
        return self._on_stale == "wait"

    def demands(self, version: PolicyVersion, live: Mapping[PolicyVersion, int]) -> list[tuple[PolicyVersion, int]]:
        """What the batch of ``version`` must hold under ``wait``, so that it and those after it can train every live group whole.

        Args:
            version: that will be trained.
            live: groups that were never trained and are running, failed or committed, by the version they were born at.

        Returns:
            Pairs ``(birth, n)``, oldest birth first, ``n`` rising: of the groups born at ``birth`` or before, at least ``n``.
        """
        if not self.waits:
            return []
        demands = []
        born, most = 0, 0
        for birth in sorted(live):
            born += live[birth]
            later_batches = max(0, birth + self._max_staleness - version)
            if (n := born - later_batches * self._groups_per_step) > most:
                most = n
                demands.append((birth, n))
        return demands
