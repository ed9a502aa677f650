"""Section ``algorithm`` of a recipe: the mathematics of the update. Formulas and sources: docs/reference/algorithms.md."""

from typing import Annotated, Literal

from msgspec import Meta

from asyncrl.core.recipe.advantage import AdvantageConfig, GdpoAdvantageConfig, GrpoAdvantageConfig, RemaxAdvantageConfig
from asyncrl.core.recipe.correction import CorrectionConfig
from asyncrl.core.recipe.custom import CustomAdvantageConfig, CustomAggregationConfig, CustomLossConfig
from asyncrl.core.recipe.loss import ClipCovLossConfig, DivergenceMaskLossConfig, KlCovLossConfig, LossConfig
from asyncrl.core.recipe.section import Count, Penalty, Positive, Section, UpToOne
from asyncrl.core.recipe.teacher import TeacherConfig


class EpisodeCreditConfig(Section, frozen=True, tag_field="kind", tag="episode"):
    """Every token of an episode has the advantage of its final reward."""


class TurnCreditConfig(Section, frozen=True, tag_field="kind", tag="turn"):
    """Every turn has an advantage of its own: the sum of its own and later turns' rewards, compared with the same sum for the
    turns of the group in the same place.

    Attributes:
        discount: discount of a reward one turn later.
    """

    discount: UpToOne = 1.0


class TokenMeanConfig(Section, frozen=True, tag_field="kind", tag="token_mean"):
    """The mean over all tokens of the batch (Yu et al. 2025, arXiv:2503.14476)."""


class SequenceMeanTokenSumConfig(Section, frozen=True, tag_field="kind", tag="sequence_mean_token_sum"):
    """Each sequence's sum, then the mean over sequences.

    Attributes:
        unit: what is a sequence: an ``episode``, with all its trajectories, or each ``trajectory``.
    """

    unit: Literal["episode", "trajectory"] = "episode"


class SequenceMeanTokenMeanConfig(Section, frozen=True, tag_field="kind", tag="sequence_mean_token_mean"):
    """Each sequence's mean, then the mean over sequences (Shao et al. 2024, arXiv:2402.03300).

    Attributes:
        unit: what is a sequence: an ``episode``, with all its trajectories, or each ``trajectory``.
    """

    unit: Literal["episode", "trajectory"] = "episode"


class ConstantAggregationConfig(Section, frozen=True, tag_field="kind", tag="constant"):
    """Each sequence's sum divided by a constant, then the mean over sequences, which favours no length (Liu et al. 2025,
    arXiv:2503.20783).

    Attributes:
        tokens: the constant, usually the most tokens that an episode may sample.
        unit: what is a sequence: an ``episode``, with all its trajectories, or each ``trajectory``.
    """

    tokens: Count
    unit: Literal["episode", "trajectory"] = "episode"


AggregationConfig = (
    TokenMeanConfig
    | SequenceMeanTokenSumConfig
    | SequenceMeanTokenMeanConfig
    | ConstantAggregationConfig
    | CustomAggregationConfig
)


class FixedKlConfig(Section, frozen=True, tag_field="kind", tag="fixed"):
    """The coefficient is constant."""


class AdaptiveKlConfig(Section, frozen=True, tag_field="kind", tag="adaptive"):
    """The coefficient moves so that the divergence stays near a target (Ziegler et al. 2019, arXiv:1909.08593).

    Attributes:
        target: target of the divergence from the reference, nats a token.
        horizon: training steps in which the coefficient may change about 1.2-fold.
    """

    target: Positive = 0.05
    horizon: Positive = 10.0


KlControlConfig = FixedKlConfig | AdaptiveKlConfig


class NoKlConfig(Section, frozen=True, tag_field="kind", tag="none"):
    """Nothing holds the policy near a reference policy."""


class KlInLossConfig(Section, frozen=True, tag_field="kind", tag="in_loss"):
    """A multiple of the divergence from the reference policy is added to the loss (Shao et al. 2024,
    arXiv:2402.03300).

    Attributes:
        coefficient: coefficient of the divergence; its first value, if it is adaptive.
        reference: the reference policy, any model of the policy's architecture and tokens: a Hugging Face folder, or an id on the
            hub; empty means the weights the run began with.
        estimator: estimator of each token's divergence.
        straight_through: descend the divergence itself, whatever the estimator's own gradient is (Tang and Munos 2025,
            arXiv:2506.09477); false is GRPO as published.
        control: whether the coefficient changes.
    """

    coefficient: Positive = 1e-3
    reference: str = ""
    estimator: Literal["k1", "abs", "k2", "k3"] = "k3"
    straight_through: bool = True
    control: KlControlConfig = FixedKlConfig()


class KlInRewardConfig(Section, frozen=True, tag_field="kind", tag="in_reward"):
    """A multiple of the divergence from the reference policy is subtracted from the reward, before advantages are computed
    (Ouyang et al. 2022, arXiv:2203.02155).

    Attributes:
        coefficient: coefficient of the divergence; its first value, if it is adaptive.
        reference: the reference policy, as for kind ``in_loss``.
        estimator: estimator of each token's divergence; only ``k1`` and ``k3`` are unbiased.
        control: whether the coefficient changes.
    """

    coefficient: Positive = 1e-3
    reference: str = ""
    estimator: Literal["k1", "abs", "k2", "k3"] = "k1"
    control: KlControlConfig = FixedKlConfig()


class OverlongPenaltyConfig(Section, frozen=True):
    """Long episodes lose reward before advantages are computed, linearly with length as they come near a limit (soft overlong
    punishment, Yu et al. 2025, arXiv:2503.14476). The buffer's filters see the reward before this.

    Attributes:
        limit: an episode of this many tokens or more, prompt and tool responses included, loses all of ``penalty``. Of several
            trajectories, the longest counts.
        ramp: how many tokens before ``limit`` an episode begins to lose reward.
        penalty: the most reward that an episode loses.
    """

    limit: Count
    ramp: Count
    penalty: Penalty = 1.0


class AlgorithmConfig(Section, frozen=True):
    """The mathematics of the update.

    Attributes:
        advantage: how much better than expected an episode did.
        credit: how the advantage is shared out over the episode.
        loss: the surrogate that the optimizer descends.
        aggregation: how the tokens' terms become one number; always over the whole batch.
        correction: how the loss corrects for tokens that an older policy sampled.
        entropy_bonus: coefficient of the policy's entropy, which is added to what is maximised.
        kl: what holds the policy near a reference policy.
        teacher: a model whose probabilities of the sampled tokens train the policy, beside rewards or, with
            ``advantage.kind: none``, alone; null for none.
        overlong: how much reward long episodes lose; null for none.
        minibatches: optimizer steps in which a batch is trained once, each on whole groups. All but the first are off-policy.
        epochs: how often a batch is trained, each time in ``minibatches`` optimizer steps.
    """

    advantage: AdvantageConfig = GrpoAdvantageConfig()
    credit: EpisodeCreditConfig | TurnCreditConfig = EpisodeCreditConfig()
    loss: LossConfig = DivergenceMaskLossConfig()
    aggregation: AggregationConfig = TokenMeanConfig()
    correction: CorrectionConfig = CorrectionConfig()
    entropy_bonus: Annotated[float, Meta(ge=0)] = 0.0
    kl: NoKlConfig | KlInLossConfig | KlInRewardConfig = NoKlConfig()
    teacher: TeacherConfig | None = None
    overlong: OverlongPenaltyConfig | None = None
    minibatches: Count = 1
    epochs: Count = 1

    @property
    def reward_names(self) -> tuple[str, ...]:
        """The names of the rewards that the advantage looks at one by one; none if it uses the final reward alone."""
        if isinstance(self.advantage, CustomAdvantageConfig):
            return self.advantage.rewards
        return self.advantage.names if isinstance(self.advantage, GdpoAdvantageConfig) else ()

    @property
    def greedy_sample(self) -> int | None:
        """The sample index of each group's greedy episode, of which only the reward is used; None if there is none."""
        return 0 if isinstance(self.advantage, RemaxAdvantageConfig) else None

    @property
    def uses_behaviour(self) -> bool:
        """Whether the update uses the probabilities with which tokens were sampled, as the anchor of its ratio, in weights or in
        criteria. A loss of the user's own counts as one that does, because it may."""
        correction, loss = self.correction, self.loss
        anchored = correction.anchor != "proximal_recomputed" and loss.has_ratio
        looks_at_it = isinstance(loss, ClipCovLossConfig | KlCovLossConfig | CustomLossConfig)
        return anchored or looks_at_it or correction.weight != "none" or bool(correction.reject)

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps from one policy version to the next."""
        return self.minibatches * self.epochs
