"""Functions of the user's own that a recipe names in place of built-in mathematics: what each computes, and where it is named.

Signatures, what must hold for a function, and examples: docs/how-to/own-algorithms.md.
"""

from typing import Any, ClassVar, Literal

from asyncrl.core.recipe.section import LossSection, Section, Text


class CustomConfig(Section, frozen=True):
    """Base of the sections that name a function.

    Attributes:
        place: the section's key in the recipe.
        name: ``module:function``.
        options: keyword arguments of the function.
    """

    place: ClassVar[str]
    name: Text
    options: dict[str, Any] = {}


class CustomAdvantageConfig(CustomConfig, frozen=True, tag_field="kind", tag="custom"):
    """A function of your own computes the advantages of all episodes, or turns, of the batch: docs/how-to/own-algorithms.md.

    Attributes:
        rewards: names of rewards that the function gets one by one beside the final one: metrics that the environment reports of
            an episode, or ``reward`` for the final one. Only where episodes are credited as a whole.
    """

    place: ClassVar[str] = "algorithm.advantage"
    rewards: tuple[Text, ...] = ()


class CustomLossConfig(CustomConfig, LossSection, frozen=True, tag_field="kind", tag="custom"):
    """A function of your own computes the loss of each token: docs/how-to/own-algorithms.md."""

    place: ClassVar[str] = "algorithm.loss"


class CustomAggregationConfig(CustomConfig, frozen=True, tag_field="kind", tag="custom"):
    """A function of your own computes each sequence's share and the denominator of the loss: docs/how-to/own-algorithms.md.

    Attributes:
        unit: what is a sequence: an ``episode``, with all its trajectories, or each ``trajectory``.
    """

    place: ClassVar[str] = "algorithm.aggregation"
    unit: Literal["episode", "trajectory"] = "episode"


class CustomWeightConfig(CustomConfig, frozen=True, tag_field="kind", tag="custom"):
    """A function of your own computes the importance weight of each token: docs/how-to/own-algorithms.md."""

    place: ClassVar[str] = "algorithm.correction.weight"


class LinearScheduleConfig(Section, frozen=True, tag_field="kind", tag="linear"):
    """A linear rise over ``learner.warmup_steps``, then a linear fall to ``learner.min_lr_ratio``."""


class CustomScheduleConfig(CustomConfig, frozen=True, tag_field="kind", tag="custom"):
    """A function of your own computes the learning rate of each training step: docs/how-to/own-algorithms.md."""

    place: ClassVar[str] = "learner.schedule"
