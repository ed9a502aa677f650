"""The staleness contract, in one pure object: when a ticket may be issued, and what may still be trained.

Always holds: no token older than ``max_staleness`` policy versions enters a loss; at most ``(pipeline_depth + 1)`` steps of
groups are outstanding. A group is outstanding from its ticket until the clock has moved past the step that trained it, so a group
issued at version v has fewer than that before it, and taken in order it is trained by version ``v + pipeline_depth``.
"""

from collections.abc import Iterable

from asyncrl.core.ids import NOT_SAMPLED, PolicyVersion
from asyncrl.core.recipe.schema import Batch, Buffer
from asyncrl.core.trajectory import Trajectory


class StalenessPolicy:
    """Pace and guarantee of ``asyncrl.core.recipe.schema.Buffer``."""

    def __init__(self, buffer: Buffer, batch: Batch) -> None:
        self._buffer = buffer
        self.max_outstanding = (buffer.pipeline_depth + 1) * batch.groups_per_step
        """Groups that may be outstanding at once."""

    def oldest_version(self, version: PolicyVersion) -> PolicyVersion:
        """The oldest sampling version whose tokens may be trained at ``version``."""
        return PolicyVersion(version - self._buffer.max_staleness)

    def has_expired(self, oldest_sampled: PolicyVersion, newest_sampled: PolicyVersion, version: PolicyVersion) -> bool:
        """Whether a group may no longer be trained at ``version``.

        Under ``drop`` one token over the bound expires the group; under ``mask`` only when no token is left within it.
        """
        deciding = oldest_sampled if self._buffer.on_stale == "drop" else newest_sampled
        return deciding < self.oldest_version(version)


def sampled_versions(trajectories: Iterable[Trajectory]) -> set[PolicyVersion]:
    """The versions that sampled at least one token of these rows."""
    return {span.version for row in trajectories for span in row.version_spans} - {NOT_SAMPLED}


def trainable_tokens(trajectory: Trajectory, oldest_version: PolicyVersion) -> int:
    """Sampled tokens of version ``oldest_version`` or newer."""
    return sum(
        span.end - span.start
        for span in trajectory.version_spans
        if span.version != NOT_SAMPLED and span.version >= oldest_version
    )
