"""The recipe's section on which episodes a run keeps as files, for people and programs to read."""

from asyncrl.core.recipe.section import Count, Section, Text


class NoTrajectoriesConfig(Section, frozen=True, tag_field="keep", tag="none"):
    """No episode is kept."""


class SampledTrajectoriesConfig(Section, frozen=True, tag_field="keep", tag="sample"):
    """A sample of each training step and of each evaluation is kept.

    Attributes:
        count: how many episodes of each training step are kept, from as many groups as possible, each with all its trajectories.
            In an evaluation, every generator keeps its part of as many, rounded up.
        dir: an address of an object store to which their files are copied, beside training; null means where ``run_dir`` is.
    """

    count: Count = 8
    dir: Text | None = None


class AllTrajectoriesConfig(Section, frozen=True, tag_field="keep", tag="all"):
    """Every episode that is trained or evaluated is kept.

    Attributes:
        dir: an address of an object store to which their files are copied, beside training; null means where ``run_dir`` is.
    """

    dir: Text | None = None


TrajectoriesConfig = NoTrajectoriesConfig | SampledTrajectoriesConfig | AllTrajectoriesConfig
