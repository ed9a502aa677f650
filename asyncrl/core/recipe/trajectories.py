"""The recipe's section on which episodes a run keeps as files, for people and programs to read."""

from asyncrl.core.recipe.section import Count, Section


class NoTrajectoriesConfig(Section, frozen=True, tag_field="keep", tag="none"):
    """No episode is kept."""


class SampledTrajectoriesConfig(Section, frozen=True, tag_field="keep", tag="sample"):
    """A sample of each training step and of each evaluation is kept.

    Attributes:
        count: how many episodes of each training step are kept, from as many groups as possible, each with all its trajectories.
            In an evaluation, every generator keeps its part of as many, rounded up.
    """

    count: Count = 8


class AllTrajectoriesConfig(Section, frozen=True, tag_field="keep", tag="all"):
    """Every episode that is trained or evaluated is kept."""


TrajectoriesConfig = NoTrajectoriesConfig | SampledTrajectoriesConfig | AllTrajectoriesConfig
