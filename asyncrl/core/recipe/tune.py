"""Section ``tune`` of a recipe: which knobs a run turns by itself while it trains, and within which bounds."""

from typing import Annotated

from msgspec import Meta

from asyncrl.core.recipe.section import Count, Section, Text, UpToOne

DEPTH = "buffer.pipeline_depth"
"""The knob that says how much is generated ahead of the learner."""
RUNNING = "generators.max_running"
"""The knob that says how many episodes an engine plays at once."""


class TuneLimitsConfig(Section, frozen=True):
    """What a setting must keep to, as a mean over the steps that it is measured for. null is no limit.

    Attributes:
        staleness_mean: the largest mean staleness (metric ``staleness/mean``).
        sample_size: the smallest effective sample size, as a share (metric ``correction/ess``).
        clip_share: the largest share of tokens whose gradient is clipped (metric ``loss/clip_fraction``).
    """

    staleness_mean: Annotated[float, Meta(ge=0)] | None = None
    sample_size: UpToOne | None = None
    clip_share: Annotated[float, Meta(ge=0, le=1)] | None = None


class TuneConfig(Section, frozen=True):
    """Turns sizes while the run trains, one at a time, towards more trained tokens a second: docs/how-to/tuning.md.

    Attributes:
        knobs: what may be turned, each with the least and the most: ``buffer.pipeline_depth`` (then it does not move by itself),
            ``generators.max_running``, ``generators.count``, and ``generators.pools.NAME.count`` of a further pool. For the
            command line: ``tune='{knobs: {generators.count: [1, 8], buffer.pipeline_depth: [1, 4]}}'``.
        limits: what every setting must keep to.
        every: training steps that a setting is measured for, at least; up to three times as many where steps differ much.
    """

    knobs: dict[Text, tuple[Count, Count]]
    limits: TuneLimitsConfig = TuneLimitsConfig()
    every: Annotated[int, Meta(ge=4)] = 12
