"""What the buffer hands to the learner: which episodes, and everything needed to plan and normalise without their payload.

A :class:`Batch` is small and the same on every rank, and planning from it is a pure function. It says where the payload of each
episode lies; the data-parallel rank that trains a row of it reads its payload there.
"""

from functools import cached_property

import msgspec

from asyncrl.core.episode_records import EpisodeRecord, TrajectoryRecord
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId

SampleName = tuple[GroupId, int]
"""What an episode is called: group and sample index."""
RowName = tuple[GroupId, int, int]
"""What a row is called: group, sample index, and its part of that episode."""


class BatchEpisode(EpisodeRecord, frozen=True, array_like=True, kw_only=True):
    """One episode of a batch: its record, and what the batch adds to it.

    Attributes:
        weight: factor of its loss terms that makes the sampler unbiased; 1 where the sampler needs none.
        source: the task source that its task was drawn from.
    """

    task_id: TaskId
    weight: float
    source: str = ""

    @classmethod
    def around(cls, record: EpisodeRecord, task_id: TaskId, source: str, weight: float) -> "BatchEpisode":
        """Make an episode of a batch of ``record``."""
        return cls(*msgspec.structs.astuple(record), task_id=task_id, source=source, weight=weight)

    @property
    def name(self) -> SampleName:
        """Group and sample index."""
        return self.group_id, self.sample_index


class BatchRow(TrajectoryRecord, frozen=True, kw_only=True):
    """One trajectory that a batch trains: its record, and what it has of its episode and of the batch.

    Attributes:
        name: group, sample index and part.
        episode: the place of its episode in the batch.
        loss_tokens: sampled tokens that may enter the loss: those of version ``Batch.oldest_version`` or newer.
        reward: the final reward of its role.
        weight, committed_version: those of its episode.
    """

    name: RowName
    episode: int
    loss_tokens: int
    reward: float
    weight: float
    committed_version: PolicyVersion

    @property
    def group_id(self) -> GroupId:
        """The group."""
        return self.name[0]

    @property
    def sample_index(self) -> int:
        """The place of its episode in the group."""
        return self.name[1]

    @property
    def part(self) -> int:
        """Its place among the trajectories of the episode."""
        return self.name[2]

    @property
    def described(self) -> str:
        """What messages call it, e.g. ``sample 2 of group 17``; of a later trajectory of its episode they name the part."""
        of = f"sample {self.sample_index} of group {self.group_id}"
        return f"trajectory {self.part} of {of}" if self.part else of


class Batch(msgspec.Struct, frozen=True, dict=True):
    """The episodes of one training step, in order; the episodes of a group are neighbours.

    Attributes:
        version: the policy version being trained.
        oldest_version: sampled tokens older than this never enter the loss (``version - max_staleness``).
    """

    version: PolicyVersion
    oldest_version: PolicyVersion
    episodes: tuple[BatchEpisode, ...]

    @cached_property
    def rows(self) -> tuple[BatchRow, ...]:
        """The trajectories that are trained, in order: all of episodes that are not greedy and of roles that are trained."""
        return tuple(
            BatchRow(
                *msgspec.structs.astuple(record),
                name=(episode.group_id, episode.sample_index, part),
                episode=place,
                loss_tokens=record.trainable_tokens(self.oldest_version),
                reward=episode.reward_of(record.role),
                weight=episode.weight,
                committed_version=episode.committed_version,
            )
            for place, episode in enumerate(self.episodes)
            if not episode.greedy
            for part, record in enumerate(episode.trajectories)
            if record.trained
        )

    @cached_property
    def largest_staleness(self) -> int:
        """The staleness of the oldest token that may enter the loss; 0 if none may."""
        versions = [version for row in self.rows for version, _ in row.sampled if version >= self.oldest_version]
        return self.version - min(versions, default=self.version)

    @property
    def trained(self) -> tuple[BatchEpisode, ...]:
        """The episodes that were played to be trained: all but greedy ones."""
        return tuple(episode for episode in self.episodes if not episode.greedy)
