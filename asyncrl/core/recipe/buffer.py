"""Section ``buffer`` of a recipe: the replay buffer, its staleness contract, samplers, filters and journal."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from asyncrl.core.recipe.section import AUTO, Count, NonNegative, Positive, Section, Text, UpToOne


class FifoSamplerConfig(Section, frozen=True, tag_field="kind", tag="fifo"):
    """Oldest group first."""


class FreshestSamplerConfig(Section, frozen=True, tag_field="kind", tag="freshest"):
    """The group with the newest tokens first."""


class PrioritisedSamplerConfig(Section, frozen=True, tag_field="kind", tag="prioritised"):
    """Draws groups without replacement, with probabilities by advantage and staleness; importance weights remove the bias.

    Attributes:
        exponent: priority is ``(mean |advantage| + floor) ** exponent * staleness_decay ** staleness``.
        floor: added to the advantage, so that no group has priority 0.
        staleness_decay: factor per policy version of staleness.
    """

    exponent: Annotated[float, Meta(ge=0)] = 1.0
    floor: Positive = 0.1
    staleness_decay: UpToOne = 1.0


class StratifiedSamplerConfig(Section, frozen=True, tag_field="kind", tag="stratified"):
    """Takes from the task sources in proportion to their weights, and from each source the oldest group first."""


class CustomSamplerConfig(Section, frozen=True, tag_field="kind", tag="custom"):
    """A sampler of your own.

    Attributes:
        name: ``module:Class``; see ``asyncrl.buffers.sampling.Sampler`` for what it must have.
        options: keyword arguments of its constructor.
    """

    name: Text
    options: dict[str, Any] = {}


class ZeroVarianceFilterConfig(Section, frozen=True, tag_field="kind", tag="zero_variance"):
    """Leave out groups whose rewards are all equal, up to rounding: their group-relative advantage is 0 (Yu et al. 2025,
    arXiv:2503.14476)."""


class AccuracyWindowFilterConfig(Section, frozen=True, tag_field="kind", tag="accuracy_window"):
    """Leave out groups whose mean reward lies outside [low, high].

    Attributes:
        low: smallest mean reward that is trained.
        high: largest mean reward that is trained.
    """

    low: float = 0.0
    high: float = 1.0


class NoJournalConfig(Section, frozen=True, tag_field="kind", tag="none"):
    """Trajectories are held in memory, and a run that is killed cannot be resumed."""


class AppendOnlyJournalConfig(Section, frozen=True, tag_field="kind", tag="append_only"):
    """Everything that happens to the buffer is written to the run folder before it happens, so that a run can be resumed.

    Attributes:
        fsync: ``never`` survives killed processes; ``always`` waits for the disk at each commit, and survives a power cut.
        segment_mb: size of a journal or payload file, in MiB, at which the next one is begun.
        keep: training steps whose batches are kept, to be replayed or trained from again (docs/how-to/replay.md). Those since
            the oldest checkpoint are kept in any case, because a resume needs them.
    """

    fsync: Literal["never", "always"] = "never"
    segment_mb: Count = 64
    keep: NonNegative = 0


class BufferConfig(Section, frozen=True):
    """The replay buffer. Staleness is counted in policy versions.

    Attributes:
        max_staleness: no token older than this enters a loss. 0 is synchronous training.
        pipeline_depth: how many training steps of experience may be outstanding ahead of the learner, which is the usual
            staleness. ``auto`` begins with 2 and moves within ``max_staleness`` while training, by one at a time, to the smallest
            depth at which learner and engines do not both wait.
        on_stale: what happens to groups that would cross the bound: ``mask`` their old tokens, ``wait`` for them before the next
            version is published, or ``drop`` them.
        max_reuse: how many training steps may train the same group, within the bound.
        sampler: which of the ready groups are trained next.
        filters: which finished groups are left out; new groups take their place.
        capacity_mb: the most bytes of trajectories held at once, in MB; beyond it no tickets are issued. Nothing is evicted.
        journal: whether the buffer survives being killed.
        shards: processes that hold trajectories, spread over the nodes of the cluster.
        max_attempts: attempts at a task that breaks its environment before it is filtered and named.
        max_failures: the most failures of one kind (broken environments, or dead generators, reward services and environment
            servers); at one more the run stops with the reason. Generators that are lost with their node do not count.
    """

    max_staleness: NonNegative = 4
    pipeline_depth: NonNegative | Literal["auto"] = AUTO
    on_stale: Literal["mask", "wait", "drop"] = "mask"
    max_reuse: Count = 1
    sampler: (
        FifoSamplerConfig | FreshestSamplerConfig | PrioritisedSamplerConfig | StratifiedSamplerConfig | CustomSamplerConfig
    ) = FifoSamplerConfig()
    filters: tuple[ZeroVarianceFilterConfig | AccuracyWindowFilterConfig, ...] = ()
    capacity_mb: Count = 4096
    journal: AppendOnlyJournalConfig | NoJournalConfig = AppendOnlyJournalConfig()
    shards: Count = 1
    max_attempts: Count = 3
    max_failures: Count = 64

    @property
    def first_depth(self) -> int:
        """The pipeline depth that a run begins with."""
        return min(2, self.max_staleness) if self.pipeline_depth == AUTO else self.pipeline_depth

    @property
    def largest_depth(self) -> int:
        """The largest pipeline depth that a run may reach."""
        return self.max_staleness if self.pipeline_depth == AUTO else self.pipeline_depth
