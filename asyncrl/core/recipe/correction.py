"""Section ``algorithm.correction`` of a recipe: how the loss corrects for tokens that an older policy sampled.

Formulas and sources: docs/reference/algorithms.md.
"""

from typing import Annotated, Literal

from msgspec import Meta

from asyncrl.core.recipe.custom import CustomWeightConfig
from asyncrl.core.recipe.section import AtLeastOne, Positive, Section, UpToOne


class TruncateBoundConfig(Section, frozen=True, tag_field="kind", tag="truncate"):
    """A weight above the bound is set to the bound (Espeholt et al. 2018, arXiv:1802.01561).

    Attributes:
        upper: the bound.
    """

    upper: AtLeastOne = 2.0


class MaskBoundConfig(Section, frozen=True, tag_field="kind", tag="mask"):
    """Tokens whose weight is outside the bounds are left out of the loss (IcePop, Ling Team 2025, arXiv:2510.18855).

    Attributes:
        lower: smallest weight that is trained.
        upper: largest weight that is trained.
    """

    lower: Annotated[float, Meta(ge=0, le=1)] = 0.5
    upper: AtLeastOne = 5.0


class NormalizedBoundConfig(Section, frozen=True, tag_field="kind", tag="normalize"):
    """A weight above the bound is set to the bound. All weights are then divided by their mean over the mini-batch's tokens,
    turns or rows, whichever level the weights have (self-normalised importance sampling, as in verl's
    ``rollout_is_batch_normalize``). Costs a forward pass of the policy before the first optimizer step.

    Attributes:
        upper: the bound.
    """

    upper: AtLeastOne = 2.0


Level = Literal["token", "segment", "sequence"]


class RejectRatioConfig(Section, frozen=True, tag_field="kind", tag="ratio"):
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


class RejectDivergenceConfig(Section, frozen=True, tag_field="kind", tag="divergence"):
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


class RejectOffPolicySequenceConfig(Section, frozen=True, tag_field="kind", tag="off_policy_sequence"):
    """Leave out tokens of negative advantage in rows that have become much less probable since they were sampled: the policy need
    not unlearn what it would hardly do any more (off-policy sequence masking, DeepSeek-AI 2025, arXiv:2512.02556).

    Attributes:
        upper: such tokens are trained if the row's mean of the sampling policy's log-probability minus that of the policy being
            optimised is at most this, nats. The paper gives no value.
    """

    upper: Positive = 0.1


class RejectSecondMomentConfig(Section, frozen=True, tag_field="kind", tag="second_moment"):
    """Leave out the tokens with the largest squared log-ratios of the probability before the training step over the sampling
    probability: just enough of them to bring the mean square of the others in the mini-batch down to a bound (M2PO, Zheng et
    al. 2025, arXiv:2510.01161). Costs a forward pass of the policy before the first optimizer step.

    Attributes:
        upper: the bound, nats squared.
    """

    upper: Positive = 0.04


RejectionConfig = RejectRatioConfig | RejectDivergenceConfig | RejectOffPolicySequenceConfig | RejectSecondMomentConfig


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
        trust_region_decay: the loss's clip range (of ``cispo``, the upper end) is multiplied by this once for each version of a
            token's staleness.
    """

    anchor: Literal["behaviour", "proximal_recomputed", "proximal_log_linear"] = "behaviour"
    weight: Literal["none", "token", "segment", "sequence"] | CustomWeightConfig = "none"
    bound: TruncateBoundConfig | MaskBoundConfig | NormalizedBoundConfig = TruncateBoundConfig()
    reject: tuple[RejectionConfig, ...] = ()
    trust_region_decay: UpToOne = 1.0

    @property
    def weight_level(self) -> str:
        """What has one weight: a ``token``, a ``segment`` (turn) or a ``sequence`` (row); ``none`` without weights."""
        return self.weight if isinstance(self.weight, str) else "token"

    @property
    def looks_at_whole_batch(self) -> bool:
        """Whether the policy's log-probabilities of all tokens are needed before the first optimizer step."""
        return isinstance(self.bound, NormalizedBoundConfig) or any(
            isinstance(one, RejectSecondMomentConfig) for one in self.reject
        )
