"""Key ``algorithm.advantage`` of a recipe: how much better than expected an episode did.

Formulas and sources: docs/reference/algorithms.md.
"""

from typing import Annotated, Literal

from msgspec import Meta

from asyncrl.core.recipe.custom import CustomAdvantageConfig
from asyncrl.core.recipe.section import NonNegative, Positive, Section, UpToOne


class GrpoAdvantageConfig(Section, frozen=True, tag_field="kind", tag="grpo"):
    """Reward relative to its group (Shao et al. 2024, arXiv:2402.03300).

    Attributes:
        normalize: ``mean_std`` divides by the group's standard deviation (the population's); ``mean`` only subtracts the mean
            (Liu et al. 2025, arXiv:2503.20783).
    """

    normalize: Literal["mean", "mean_std"] = "mean_std"


class RlooAdvantageConfig(Section, frozen=True, tag_field="kind", tag="rloo"):
    """Reward minus the mean of the *other* episodes of its group: leave one out (Ahmadian et al. 2024, arXiv:2402.14740)."""


class ReinforcePlusPlusAdvantageConfig(Section, frozen=True, tag_field="kind", tag="reinforce_plus_plus"):
    """Reward normalised by mean and standard deviation over all tokens of the batch (Hu et al. 2025, arXiv:2501.03262).

    Attributes:
        baseline: ``none``, or ``group`` to subtract the group's mean first. The batch's mean is subtracted afterwards, so a
            group of equal rewards may have an advantage other than 0.
    """

    baseline: Literal["none", "group"] = "none"


class OpoAdvantageConfig(Section, frozen=True, tag_field="kind", tag="opo"):
    """Reward minus the group's mean weighted by length, the baseline of least variance (Hao et al. 2025, arXiv:2505.23585)."""


class GpgAdvantageConfig(Section, frozen=True, tag_field="kind", tag="gpg"):
    """Reward minus the group's mean, scaled up to make up for groups whose rewards are all equal (Chu et al. 2025,
    arXiv:2504.02546)."""


class RemaxAdvantageConfig(Section, frozen=True, tag_field="kind", tag="remax"):
    """Reward minus that of a greedy episode of the same task. The greedy episode is the first of each group, and is not trained
    (Li et al. 2023, arXiv:2310.10505)."""


class PassAtKAdvantageConfig(Section, frozen=True, tag_field="kind", tag="pass_at_k"):
    """Advantage of an episode as one of ``k``, of which at least one must succeed (Chen et al. 2025, arXiv:2508.10751).

    Attributes:
        k: number of episodes of which one must succeed.
        success: an episode with at least this reward, up to rounding, has succeeded.
    """

    k: Annotated[int, Meta(ge=2)] = 4
    success: float = 1.0


class MaxRlAdvantageConfig(Section, frozen=True, tag_field="kind", tag="max_rl"):
    """Success (1 or 0) minus the group's rate of success, divided by that rate: rare successes weigh more, as they do in the
    likelihood of succeeding (Tajwar, Zeng et al. 2026, arXiv:2602.02710).

    Attributes:
        success: an episode with at least this reward, up to rounding, has succeeded.
    """

    success: float = 1.0


class BestOfGroupAdvantageConfig(Section, frozen=True, tag_field="kind", tag="best_of_group"):
    """The best episode gets its reward minus the best of the others, all others 0. This trains the best of as many tries as
    the group has episodes (pass@k with k the group's size, leave one out; Tang et al. 2025, arXiv:2503.19595)."""


class GaeAdvantageConfig(Section, frozen=True, tag_field="kind", tag="gae"):
    """Generalised advantage estimation with a critic (Schulman et al. 2016, arXiv:1506.02438), normalised over the
    batch's tokens. The critic is a second model of the policy's architecture, which begins with the policy's weights.

    Attributes:
        discount: discount of a reward one sampled token later.
        lam: the method's lambda, how far back a reward counts directly and not through the critic's values: 1 is to the
            first token, 0 is its own token only.
        length_adaptive_alpha: above 0, ``lam`` is ``1 - 1 / (alpha * tokens of the episode)`` instead (Yue et al. 2025,
            arXiv:2504.05118).
        critic_lr: learning rate of the critic, constant.
        critic_warmup_steps: training steps at the start in which only the critic is trained.
        value_clip: a value that has moved by more than this since before the batch's first optimizer step is moved no
            further; 0 sets no limit.
    """

    discount: UpToOne = 1.0
    lam: Annotated[float, Meta(ge=0, le=1)] = 1.0
    length_adaptive_alpha: Annotated[float, Meta(ge=0)] = 0.0
    critic_lr: Positive = 1e-5
    critic_warmup_steps: NonNegative = 0
    value_clip: Annotated[float, Meta(ge=0)] = 0.2


class GdpoAdvantageConfig(Section, frozen=True, tag_field="kind", tag="gdpo"):
    """Several rewards of an episode. Each is normalised within its group, and their weighted sum is normalised over the batch's
    tokens (Liu et al. 2026, arXiv:2601.05242).

    Attributes:
        rewards: the weight of each reward, by name. A name is a metric that the environment reports of an episode, or
            ``reward`` for the final reward. A weight is from 1e-6 to 1e6, or from -1e6 to -1e-6 for what should be small.
    """

    rewards: Annotated[dict[str, float], Meta(min_length=1)]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rewards, in the order in which records hold the values."""
        return tuple(sorted(self.rewards))


class NoAdvantageConfig(Section, frozen=True, tag_field="kind", tag="none"):
    """0 for every episode: rewards train nothing, and ``algorithm.teacher`` does it alone."""


AdvantageConfig = (
    GrpoAdvantageConfig
    | RlooAdvantageConfig
    | ReinforcePlusPlusAdvantageConfig
    | OpoAdvantageConfig
    | GpgAdvantageConfig
    | RemaxAdvantageConfig
    | PassAtKAdvantageConfig
    | MaxRlAdvantageConfig
    | BestOfGroupAdvantageConfig
    | GaeAdvantageConfig
    | GdpoAdvantageConfig
    | NoAdvantageConfig
    | CustomAdvantageConfig
)
