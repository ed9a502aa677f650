"""The recipe's section on the weights on their way from the learner to the engines."""

from asyncrl.core.recipe.section import Count, Section


class WeightsConfig(Section, frozen=True):
    """How weights are published, and how that is checked.

    Attributes:
        probe_every: publications between two probes: an engine and the learner compute the log-probabilities of a few rows of the
            batch with the version just published, and the run stops if they differ by more than the rounding of their types. The
            first publication is always probed. null for never.
    """

    probe_every: Count | None = 20
