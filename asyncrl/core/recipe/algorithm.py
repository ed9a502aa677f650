"""The mathematics of the update, as a recipe states it. Formulas and sources: docs/algorithms.md."""

from typing import Annotated, Literal

from msgspec import Meta

from asyncrl.core.recipe.custom import CustomAdvantage, CustomAggregation, CustomLoss, CustomWeight
from asyncrl.core.recipe.section import Count, NonNegative, Positive, Section

Share = Annotated[float, Meta(gt=0, lt=1)]
UpToOne = Annotated[float, Meta(gt=0, le=1)]
AtLeastOne = Annotated[float, Meta(ge=1)]


class GrpoAdvantage(Section, frozen=True, tag_field="kind", tag="grpo"):
    """Reward relative to its group (Shao et al. 2024, arXiv:2402.03300).

    Attributes:
        normalize: ``mean_std`` divides by the group's standard deviation (the population's); ``mean`` only subtracts the mean
            (Liu et al. 2025, arXiv:2503.20783).
    """

    normalize: Literal["mean", "mean_std"] = "mean_std"


class RlooAdvantage(Section, frozen=True, tag_field="kind", tag="rloo"):
    """Reward minus the mean of the *other* episodes of its group: leave one out (Ahmadian et al. 2024, arXiv:2402.14740)."""


class ReinforcePlusPlusAdvantage(Section, frozen=True, tag_field="kind", tag="reinforce_plus_plus"):
    """Reward normalised by mean and standard deviation over all tokens of the batch (Hu et al. 2025, arXiv:2501.03262).

    Attributes:
        baseline: ``none``, or ``group`` to subtract the group's mean first. The batch's mean is subtracted afterwards, so a
            group of equal rewards may have an advantage other than 0.
    """

    baseline: Literal["none", "group"] = "none"


class OpoAdvantage(Section, frozen=True, tag_field="kind", tag="opo"):
    """Reward minus the group's mean weighted by length, the baseline of least variance (Hao et al. 2025, arXiv:2505.23585)."""


class GpgAdvantage(Section, frozen=True, tag_field="kind", tag="gpg"):
    """Reward minus the group's mean, scaled up to make up for groups whose rewards are all equal (Chu et al. 2025,
    arXiv:2504.02546)."""


class RemaxAdvantage(Section, frozen=True, tag_field="kind", tag="remax"):
    """Reward minus that of a greedy episode of the same task. The greedy episode is the first of each group, and is not trained
    (Li et al. 2023, arXiv:2310.10505)."""


class PassAtKAdvantage(Section, frozen=True, tag_field="kind", tag="pass_at_k"):
    """Advantage of an episode as one of ``k``, of which at least one must succeed (Chen et al. 2025, arXiv:2508.10751).

    Attributes:
        k: number of episodes of which one must succeed.
        success: an episode with at least this reward, up to rounding, has succeeded.
    """

    k: Annotated[int, Meta(ge=2)] = 4
    success: float = 1.0


class MaxRlAdvantage(Section, frozen=True, tag_field="kind", tag="max_rl"):
    """Success (1 or 0) minus the group's rate of success, divided by that rate: rare successes weigh more, as they do in the
    likelihood of succeeding (Tajwar, Zeng et al. 2026, arXiv:2602.02710).

    Attributes:
        success: an episode with at least this reward, up to rounding, has succeeded.
    """

    success: float = 1.0


class BestOfGroupAdvantage(Section, frozen=True, tag_field="kind", tag="best_of_group"):
    """For the best episode, its reward minus the best of the others; 0 for all others. This trains the best of as many tries as
    the group has episodes (pass@k with k the group's size, leave one out; Tang et al. 2025, arXiv:2503.19595)."""


class GaeAdvantage(Section, frozen=True, tag_field="kind", tag="gae"):
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


class GdpoAdvantage(Section, frozen=True, tag_field="kind", tag="gdpo"):
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


Advantage = (
    GrpoAdvantage
    | RlooAdvantage
    | ReinforcePlusPlusAdvantage
    | OpoAdvantage
    | GpgAdvantage
    | RemaxAdvantage
    | PassAtKAdvantage
    | MaxRlAdvantage
    | BestOfGroupAdvantage
    | GaeAdvantage
    | GdpoAdvantage
    | CustomAdvantage
)


class EpisodeCredit(Section, frozen=True, tag_field="kind", tag="episode"):
    """Every token of an episode has the advantage of its final reward."""


class TurnCredit(Section, frozen=True, tag_field="kind", tag="turn"):
    """Every turn has an advantage of its own: the sum of its own and later turns' rewards, compared with the same sum for the
    turns of the group in the same place.

    Attributes:
        discount: discount of a reward one turn later.
    """

    discount: UpToOne = 1.0


class PpoClipLoss(Section, frozen=True, tag_field="kind", tag="ppo_clip"):
    """Clipped surrogate (Schulman et al. 2017, arXiv:1707.06347) with an asymmetric range (Yu et al. 2025, arXiv:2503.14476).

    Attributes:
        clip_low: the ratio is clipped below at ``1 - clip_low``.
        clip_high: the ratio is clipped above at ``1 + clip_high``.
        dual_clip: where the advantage is negative, the ratio counts as at most this (Ye et al. 2020, arXiv:1912.09729); 0 is off.
    """

    clip_low: Share = 0.2
    clip_high: Positive = 0.28
    dual_clip: Annotated[float, Meta(ge=0)] = 0.0


class GspoLoss(Section, frozen=True, tag_field="kind", tag="gspo"):
    """Clipped surrogate with one ratio for the whole row, the geometric mean over its tokens (Zheng et al. 2025,
    arXiv:2507.18071).

    Attributes:
        clip_low: the ratio is clipped below at ``1 - clip_low``.
        clip_high: the ratio is clipped above at ``1 + clip_high``.
    """

    clip_low: Share = 3e-4
    clip_high: Positive = 4e-4


class CispoLoss(Section, frozen=True, tag_field="kind", tag="cispo"):
    """The log-probability, weighted by a clipped ratio that has no gradient, so that every token keeps its gradient (MiniMax
    2025, arXiv:2506.13585).

    Attributes:
        clip_low: the weight is at least ``1 - clip_low``; 1 leaves it unbounded below.
        clip_high: the weight is at most ``1 + clip_high``.
    """

    clip_low: UpToOne = 1.0
    clip_high: Positive = 4.0


class SapoLoss(Section, frozen=True, tag_field="kind", tag="sapo"):
    """A smooth gate in place of the clip: ``4 / tau * sigmoid(tau * (ratio - 1))`` (Gao et al. 2025, arXiv:2511.20347).

    Attributes:
        tau_positive: steepness where the advantage is positive.
        tau_negative: steepness where it is not.
    """

    tau_positive: Positive = 1.0
    tau_negative: Positive = 1.05


class GmpoLoss(Section, frozen=True, tag_field="kind", tag="gmpo"):
    """Geometric mean of the row's ratios, each of which is clipped first (Zhao et al. 2025, arXiv:2507.20673).

    Attributes:
        clip: log-ratios are clipped to ``[-clip, clip]``.
    """

    clip: Positive = 0.4


class DivergenceMaskLoss(Section, frozen=True, tag_field="kind", tag="dppo"):
    """Tokens that have moved too far from the anchor, in the direction that their advantage pushes, lose their gradient (Qi et
    al. 2026, arXiv:2602.04879). The distance is a divergence of two outcomes: this token, or any other.

    Attributes:
        divergence: ``tv`` is the difference of the probabilities, ``kl`` the KL divergence from the anchor to the policy, nats.
        low: largest divergence of a token that keeps its gradient, where the advantage is not positive.
        high: the same where the advantage is positive.
        max_ratio: the ratio that weighs the log-probability never exceeds this.
    """

    divergence: Literal["tv", "kl"] = "tv"
    low: Positive = 0.2
    high: Positive = 0.2
    max_ratio: AtLeastOne = 20.0


class ClipCovLoss(Section, frozen=True, tag_field="kind", tag="clip_cov"):
    """Clipped surrogate in which some tokens of high covariance between log-probability and advantage, which drive entropy down,
    lose their gradient (Cui et al. 2025, arXiv:2505.22617).

    Attributes:
        clip_low: the ratio is clipped below at ``1 - clip_low``.
        clip_high: the ratio is clipped above at ``1 + clip_high``.
        share: share of the batch's tokens that lose it, chosen at random among those between ``low`` and ``high``.
        low: smallest covariance of a token that may lose it.
        high: largest covariance of a token that may lose it.
    """

    clip_low: Share = 0.2
    clip_high: Positive = 0.28
    share: UpToOne = 2e-4
    low: float = 1.0
    high: float = 5.0


class KlCovLoss(Section, frozen=True, tag_field="kind", tag="kl_cov"):
    """Unclipped surrogate with a penalty on the tokens of highest covariance between log-probability and advantage (Cui et al.
    2025, arXiv:2505.22617).

    Attributes:
        share: share of the batch's tokens that are penalised; ties are broken at random.
        coefficient: coefficient of the penalty, which is the absolute log-ratio.
    """

    share: UpToOne = 2e-3
    coefficient: Positive = 1.0


class ReinforceLoss(Section, frozen=True, tag_field="kind", tag="reinforce"):
    """The log-probability times the advantage, without ratio or clip (Williams 1992)."""


Loss = (
    PpoClipLoss
    | GspoLoss
    | CispoLoss
    | SapoLoss
    | GmpoLoss
    | DivergenceMaskLoss
    | ClipCovLoss
    | KlCovLoss
    | ReinforceLoss
    | CustomLoss
)


class TokenMean(Section, frozen=True, tag_field="kind", tag="token_mean"):
    """The mean over all tokens of the batch (Yu et al. 2025, arXiv:2503.14476)."""


class SequenceMeanTokenSum(Section, frozen=True, tag_field="kind", tag="sequence_mean_token_sum"):
    """Each row's sum, then the mean over rows."""


class SequenceMeanTokenMean(Section, frozen=True, tag_field="kind", tag="sequence_mean_token_mean"):
    """Each row's mean, then the mean over rows (Shao et al. 2024, arXiv:2402.03300)."""


class ConstantAggregation(Section, frozen=True, tag_field="kind", tag="constant"):
    """Each row's sum divided by a constant, then the mean over rows, which favours no length (Liu et al. 2025,
    arXiv:2503.20783).

    Attributes:
        tokens: the constant, usually the most tokens that an episode may sample.
    """

    tokens: Count


Aggregation = TokenMean | SequenceMeanTokenSum | SequenceMeanTokenMean | ConstantAggregation | CustomAggregation


class TruncateBound(Section, frozen=True, tag_field="kind", tag="truncate"):
    """A weight above the bound is set to the bound (Espeholt et al. 2018, arXiv:1802.01561).

    Attributes:
        upper: the bound.
    """

    upper: AtLeastOne = 2.0


class MaskBound(Section, frozen=True, tag_field="kind", tag="mask"):
    """Tokens whose weight is outside the bounds are left out of the loss (IcePop, Ling Team 2025, arXiv:2510.18855).

    Attributes:
        lower: smallest weight that is trained.
        upper: largest weight that is trained.
    """

    lower: Annotated[float, Meta(ge=0, le=1)] = 0.5
    upper: AtLeastOne = 5.0


class NormalizedBound(Section, frozen=True, tag_field="kind", tag="normalize"):
    """A weight above the bound is set to the bound. All weights are then divided by their mean over the mini-batch's tokens,
    turns or rows, whichever level the weights have (self-normalised importance sampling, as in verl's
    ``rollout_is_batch_normalize``). Costs a forward pass of the policy before the first optimizer step.

    Attributes:
        upper: the bound.
    """

    upper: AtLeastOne = 2.0


Level = Literal["token", "segment", "sequence"]


class RejectRatio(Section, frozen=True, tag_field="kind", tag="ratio"):
    """Leave out what is much more or less probable under the policy before the training step than under the sampling policy.

    Attributes:
        level: what is left out together: a ``token``, a ``segment`` (turn) or a ``sequence`` (row).
        reduce: how the log-ratios of its tokens become one number; with ``max``, every token must be in range.
        lower: smallest ratio that is trained, that is ``exp`` of the reduced log-ratio.
        upper: largest ratio that is trained.
    """

    level: Level = "sequence"
    reduce: Literal["mean", "sum", "max"] = "mean"
    lower: Annotated[float, Meta(ge=0, le=1)] = 0.5
    upper: AtLeastOne = 2.0


class RejectDivergence(Section, frozen=True, tag_field="kind", tag="divergence"):
    """Leave out what has a large estimated KL divergence from the policy that sampled it to the policy before the training step.

    Attributes:
        estimator: Schulman's estimator, where ``r`` is the probability before the training step over the sampling probability:
            ``k1`` is ``-log r``, ``k2`` is ``(log r)**2 / 2``, ``k3`` is ``r - 1 - log r``.
        level: what is left out together: a ``token``, a ``segment`` (turn) or a ``sequence`` (row).
        reduce: how the estimates of its tokens become one number.
        upper: largest divergence that is trained, nats.
    """

    estimator: Literal["k1", "k2", "k3"] = "k3"
    level: Level = "sequence"
    reduce: Literal["mean", "sum", "max"] = "mean"
    upper: Positive = 0.1


class RejectOffPolicySequence(Section, frozen=True, tag_field="kind", tag="off_policy_sequence"):
    """Leave out tokens of negative advantage in rows that have become much less probable since they were sampled: the policy need
    not unlearn what it would hardly do any more (off-policy sequence masking, DeepSeek-AI 2025, arXiv:2512.02556).

    Attributes:
        upper: such tokens are trained if the row's mean of the sampling policy's log-probability minus that of the policy being
            optimised is at most this, nats. The paper gives no value.
    """

    upper: Positive = 0.1


class RejectSecondMoment(Section, frozen=True, tag_field="kind", tag="second_moment"):
    """Leave out the tokens with the largest squared log-ratios of the probability before the training step over the sampling
    probability: just enough of them to bring the mean square of the others in the mini-batch down to a bound (M2PO, Zheng et
    al. 2025, arXiv:2510.01161). Costs a forward pass of the policy before the first optimizer step.

    Attributes:
        upper: the bound, nats squared.
    """

    upper: Positive = 0.04


Rejection = RejectRatio | RejectDivergence | RejectOffPolicySequence | RejectSecondMoment


class CorrectionConfig(Section, frozen=True):
    """How the loss corrects for tokens that an older policy sampled. By default the loss's own ratio does it, which is formed
    with the policy that sampled the token. For ``max_staleness`` above 4, use ``+correction=far`` on the command line.

    Attributes:
        anchor: the policy that the loss's ratio is formed with. ``behaviour`` is the policy that sampled the token;
            ``proximal_recomputed`` is the policy before the training step (Hilton et al. 2022, arXiv:2110.00641);
            ``proximal_log_linear`` approximates the policy one version back by interpolation, according to staleness, between
            the sampling and the current policy (Li et al. 2025, arXiv:2512.06547); for a fresh token it is the sampling policy.
        weight: importance weight of anchor over behaviour probability, of each ``token``, ``segment`` (turn) or ``sequence``
            (row). The latter two are geometric means over tokens, since a product's variance grows exponentially with length.
            Anchor ``behaviour`` needs ``none``; with the other anchors ``token`` is usual. A section of kind ``custom`` names a
            function of your own.
        bound: keeps the weight's variance finite.
        reject: criteria; whatever any of them rejects stays out of the loss.
        trust_region_decay: the loss's clip range is multiplied by this once for each version of a token's staleness.
    """

    anchor: Literal["behaviour", "proximal_recomputed", "proximal_log_linear"] = "behaviour"
    weight: Literal["none", "token", "segment", "sequence"] | CustomWeight = "none"
    bound: TruncateBound | MaskBound | NormalizedBound = TruncateBound()
    reject: tuple[Rejection, ...] = ()
    trust_region_decay: UpToOne = 1.0

    @property
    def weight_level(self) -> str:
        """What has one weight: a ``token``, a ``segment`` (turn) or a ``sequence`` (row); ``none`` without weights."""
        return self.weight if isinstance(self.weight, str) else "token"

    @property
    def looks_at_whole_batch(self) -> bool:
        """Whether the policy's log-probabilities of all tokens are needed before the first optimizer step."""
        return isinstance(self.bound, NormalizedBound) or any(isinstance(one, RejectSecondMoment) for one in self.reject)


class FixedKl(Section, frozen=True, tag_field="kind", tag="fixed"):
    """The coefficient is constant."""


class AdaptiveKl(Section, frozen=True, tag_field="kind", tag="adaptive"):
    """The coefficient moves so that the divergence stays near a target (Ziegler et al. 2019, arXiv:1909.08593).

    Attributes:
        target: target of the divergence from the reference, nats a token.
        horizon: training steps in which the coefficient may change about 1.2-fold.
    """

    target: Positive = 0.05
    horizon: Positive = 10.0


KlControl = FixedKl | AdaptiveKl


class NoKl(Section, frozen=True, tag_field="kind", tag="none"):
    """Nothing holds the policy near a reference policy."""


class KlInLoss(Section, frozen=True, tag_field="kind", tag="in_loss"):
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
    control: KlControl = FixedKl()


class KlInReward(Section, frozen=True, tag_field="kind", tag="in_reward"):
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
    control: KlControl = FixedKl()


class OverlongPenalty(Section, frozen=True):
    """Long episodes lose reward before advantages are computed, linearly with length as they come near a limit (soft overlong
    punishment, Yu et al. 2025, arXiv:2503.14476). The buffer's filters see the reward before this.

    Attributes:
        limit: an episode of this many tokens or more, prompt and tool responses included, loses all of ``penalty``.
        ramp: how many tokens before ``limit`` an episode begins to lose reward.
        penalty: the most reward that an episode loses.
    """

    limit: Count
    ramp: Count
    penalty: Positive = 1.0


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
        overlong: how much reward long episodes lose; null for none.
        minibatches: optimizer steps in which a batch is trained once, each on whole groups. All but the first are off-policy.
        epochs: how often a batch is trained, each time in ``minibatches`` optimizer steps.
    """

    advantage: Advantage = GrpoAdvantage()
    credit: EpisodeCredit | TurnCredit = EpisodeCredit()
    loss: Loss = DivergenceMaskLoss()
    aggregation: Aggregation = TokenMean()
    correction: CorrectionConfig = CorrectionConfig()
    entropy_bonus: Annotated[float, Meta(ge=0)] = 0.0
    kl: NoKl | KlInLoss | KlInReward = NoKl()
    overlong: OverlongPenalty | None = None
    minibatches: Count = 1
    epochs: Count = 1

    @property
    def reward_names(self) -> tuple[str, ...]:
        """The names of the rewards that the advantage looks at one by one; none if it uses the final reward alone."""
        if isinstance(self.advantage, CustomAdvantage):
            return self.advantage.rewards
        return self.advantage.names if isinstance(self.advantage, GdpoAdvantage) else ()

    @property
    def greedy_sample(self) -> int | None:
        """The sample index of each group's greedy episode, of which only the reward is used; None if there is none."""
        return 0 if isinstance(self.advantage, RemaxAdvantage) else None

    @property
    def uses_behaviour(self) -> bool:
        """Whether the update uses the probabilities with which tokens were sampled, as the anchor of its ratio, in weights or in
        criteria. A loss of the user's own counts as one that does, because it may."""
        correction, loss = self.correction, self.loss
        anchored = correction.anchor != "proximal_recomputed" and not isinstance(loss, ReinforceLoss)
        looks_at_it = isinstance(loss, ClipCovLoss | KlCovLoss | CustomLoss)
        return anchored or looks_at_it or correction.weight != "none" or bool(correction.reject)

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps from one policy version to the next."""
        return self.minibatches * self.epochs
