"""The staleness contract in one pure object: when tickets may be issued, what may be trained, and what must be trained now.

What always holds:

* no token older than ``max_staleness`` policy versions enters a loss;
* at most ``pipeline_depth + 1`` batches of groups are outstanding, unless the depth has just become smaller. A group is
  outstanding from its ticket until the version that its training step made is published. So fewer groups than that are
  ahead of a group issued at version v, and if groups are taken in order, it is trained by version
  ``v + pipeline_depth``;
* under ``wait`` every group is trained whole. Because ``pipeline_depth <= max_staleness``, the groups that must be
  trained by a version always fit into the batches up to that version: no batch is forced to hold more than it can.
"""

from collections.abc import Mapping

import msgspec

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.recipe.buffer import BufferConfig
from asyncrl.core.recipe.schema import BatchConfig


class Load(msgspec.Struct, frozen=True):
    """The buffer's current work, as far as it matters for new tickets.

    Attributes:
        depth: the pipeline depth.
        waiting: groups that are running or committed.
        failed: groups that wait to be issued again.
        unpublished_batches: groups in batches whose training step is not published yet.
        returning: groups in training that will be ready once more.
        supply: how many trainings the running, committed and returning groups can still be used for.
        wanted: how many trainings of groups the rest of the run still needs.
        payload_bytes: bytes of payload of groups that have not ended.
    """

    depth: int
    waiting: int
    failed: int
    unpublished_batches: int
    returning: int
    supply: int
    wanted: int
    payload_bytes: int


class StalenessPolicy:
    """Computes the pace, the staleness bound and the capacities that section ``buffer`` of the recipe asks for."""

    def __init__(self, buffer: BufferConfig, batch: BatchConfig) -> None:
        self._on_stale, self._max_staleness = buffer.on_stale, buffer.max_staleness
        self._max_reuse, self._groups_per_step = buffer.max_reuse, batch.groups_per_step
        self._max_bytes = buffer.capacity_mb * 1_000_000

    def room(self, load: Load) -> int:
        """Return how many groups may be issued now: the smallest number that pace, rest of the run and memory allow.

        Neither the rest of the run nor a full memory may keep back what a batch needs: enough different groups, and
        failed groups, whose finished episodes can only be freed once the missing ones are there.
        """
        if load.wanted <= 0:
            return 0
        needed = max(load.failed, self._groups_per_step - load.waiting - load.returning)
        new_trainings = -(-(load.wanted - load.supply) // self._max_reuse)
        useful = max(needed, new_trainings)
        if load.payload_bytes >= self._max_bytes:
            useful = max(load.failed, min(useful, self._groups_per_step - load.waiting))
        return max(0, min((load.depth + 1) * self._groups_per_step - load.waiting - load.unpublished_batches, useful))

    def oldest_version(self, version: PolicyVersion) -> PolicyVersion:
        """Return the oldest version whose tokens may be trained at ``version``."""
        return PolicyVersion(version - self._max_staleness)

    def expiry_version(self, oldest_sampled: PolicyVersion, newest_sampled: PolicyVersion) -> PolicyVersion:
        """Return the version that decides about a complete group: once it is over the bound, the group expires.

        Under ``mask``, a group expires when all its tokens are over the bound; otherwise, when one token is.
        """
        return newest_sampled if self._on_stale == "mask" else oldest_sampled

    def expired_unfinished_below(self, published: PolicyVersion) -> PolicyVersion | None:
        """Return a version; unfinished groups born before it can no longer be trained. None under ``mask``."""
        return None if self._on_stale == "mask" else self.oldest_version(published)

    @property
    def waits(self) -> bool:
        """Whether the learner waits for groups that are about to cross the bound."""
        return self._on_stale == "wait"

    def demands(self, version: PolicyVersion, live: Mapping[PolicyVersion, int]) -> list[tuple[PolicyVersion, int]]:
        """Return what the batch of ``version`` must hold under ``wait``, so that every live group can be trained whole.

        Args:
            version: the version that will be trained.
            live: number of groups that were never trained and are running, failed or committed, by birth.

        Returns:
            Pairs ``(birth, n)``, oldest birth first, ``n`` rising: the batch must hold at least ``n`` of the groups
            born at ``birth`` or before.
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
