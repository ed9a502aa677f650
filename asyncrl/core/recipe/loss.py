"""Key ``algorithm.loss`` of a recipe: what the optimizer descends. Formulas and sources: docs/reference/algorithms.md."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from asyncrl.core.recipe.custom import CustomLossConfig
from asyncrl.core.recipe.section import AtLeastOne, LossSection, Positive, Share, UpToOne


class PpoClipLossConfig(LossSection, frozen=True, tag_field="kind", tag="ppo_clip"):
    """Clipped surrogate (Schulman et al. 2017, arXiv:1707.06347) with an asymmetric range (Yu et al. 2025, arXiv:2503.14476).

    Attributes:
        clip_low: the ratio is clipped below at ``1 - clip_low``.
        clip_high: the ratio is clipped above at ``1 + clip_high``.
        dual_clip: where the advantage is negative, the ratio counts as at most this (Ye et al. 2020, arXiv:1912.09729); 0 is off.
    """

    ratio_keys: ClassVar[tuple[str, ...]] = ("clip_low", "clip_high", "dual_clip")
    has_clip_range: ClassVar[bool] = True
    clip_low: Share = 0.2
    clip_high: Positive = 0.28
    dual_clip: Annotated[float, Meta(ge=0)] = 0.0


class GspoLossConfig(LossSection, frozen=True, tag_field="kind", tag="gspo"):
    """Clipped surrogate with one ratio for the whole row, the geometric mean over its tokens (Zheng et al. 2025,
    arXiv:2507.18071).

    Attributes:
        clip_low: the ratio is clipped below at ``1 - clip_low``.
        clip_high: the ratio is clipped above at ``1 + clip_high``.
    """

    ratio_keys: ClassVar[tuple[str, ...]] = ("clip_low", "clip_high")
    has_clip_range: ClassVar[bool] = True
    clip_low: Share = 3e-4
    clip_high: Positive = 4e-4


class CispoLossConfig(LossSection, frozen=True, tag_field="kind", tag="cispo"):
    """The log-probability, weighted by a clipped ratio that has no gradient, so that every token keeps its gradient (MiniMax
    2025, arXiv:2506.13585).

    Attributes:
        clip_low: the weight is at least ``1 - clip_low``; 1 leaves it unbounded below.
        clip_high: the weight is at most ``1 + clip_high``.
    """

    ratio_keys: ClassVar[tuple[str, ...]] = ("clip_low", "clip_high")
    has_clip_range: ClassVar[bool] = True
    clip_low: UpToOne = 1.0
    clip_high: Positive = 4.0


class SapoLossConfig(LossSection, frozen=True, tag_field="kind", tag="sapo"):
    """A smooth gate in place of the clip: ``4 / tau * sigmoid(tau * (ratio - 1))`` (Gao et al. 2025, arXiv:2511.20347).

    Attributes:
        tau_positive: steepness where the advantage is positive.
        tau_negative: steepness where it is not.
    """

    ratio_keys: ClassVar[tuple[str, ...]] = ("tau_positive", "tau_negative")
    tau_positive: Positive = 1.0
    tau_negative: Positive = 1.05


class GmpoLossConfig(LossSection, frozen=True, tag_field="kind", tag="gmpo"):
    """Geometric mean of the row's ratios, each of which is clipped first (Zhao et al. 2025, arXiv:2507.20673).

    Attributes:
        clip: log-ratios are clipped to ``[-clip, clip]``.
    """

    ratio_keys: ClassVar[tuple[str, ...]] = ("clip",)
    has_clip_range: ClassVar[bool] = True
    clip: Positive = 0.4


class DivergenceMaskLossConfig(LossSection, frozen=True, tag_field="kind", tag="dppo"):
    """Tokens that have moved too far from the anchor, in the direction that their advantage pushes, lose their gradient (Qi et
    al. 2026, arXiv:2602.04879). The distance is a divergence of two outcomes: this token, or any other.

    Attributes:
        divergence: ``tv`` is the difference of the probabilities, ``kl`` the KL divergence from the anchor to the policy, nats.
        low: largest divergence of a token that keeps its gradient, where the advantage is not positive; null is 0.2 for ``tv``
            and 0.05 for ``kl``.
        high: the same where the advantage is positive.
        max_ratio: the ratio that weighs the log-probability never exceeds this.
    """

    ratio_keys: ClassVar[tuple[str, ...]] = ("low", "high", "max_ratio")
    has_clip_range: ClassVar[bool] = True
    divergence: Literal["tv", "kl"] = "tv"
    low: Positive | None = None
    high: Positive | None = None
    max_ratio: AtLeastOne = 20.0

    @property
    def bounds(self) -> tuple[float, float]:
        """``low`` and ``high``, as given or as usual for the divergence."""
        usual = {"tv": 0.2, "kl": 0.05}[self.divergence]
        return usual if self.low is None else self.low, usual if self.high is None else self.high


class ClipCovLossConfig(LossSection, frozen=True, tag_field="kind", tag="clip_cov"):
    """Clipped surrogate in which some tokens of high covariance between log-probability and advantage, which drive entropy down,
    lose their gradient (Cui et al. 2025, arXiv:2505.22617).

    Attributes:
        clip_low: the ratio is clipped below at ``1 - clip_low``.
        clip_high: the ratio is clipped above at ``1 + clip_high``.
        share: share of the batch's tokens that lose it, chosen at random among those between ``low`` and ``high``.
        low: smallest covariance of a token that may lose it.
        high: largest covariance of a token that may lose it.
    """

    ratio_keys: ClassVar[tuple[str, ...]] = ("clip_low", "clip_high")
    has_clip_range: ClassVar[bool] = True
    clip_low: Share = 0.2
    clip_high: Positive = 0.28
    share: UpToOne = 2e-4
    low: float = 1.0
    high: float = 5.0


class KlCovLossConfig(LossSection, frozen=True, tag_field="kind", tag="kl_cov"):
    """Unclipped surrogate with a penalty on the tokens of highest covariance between log-probability and advantage (Cui et al.
    2025, arXiv:2505.22617).

    Attributes:
        share: share of the batch's tokens that are penalised; ties are broken at random.
        coefficient: coefficient of the penalty, which is the absolute log-ratio.
    """

    ratio_keys: ClassVar[tuple[str, ...]] = ("share", "coefficient")
    share: UpToOne = 2e-3
    coefficient: Positive = 1.0


class ReinforceLossConfig(LossSection, frozen=True, tag_field="kind", tag="reinforce"):
    """The log-probability times the advantage, without ratio or clip (Williams 1992)."""

    has_ratio: ClassVar[bool] = False


class CrossEntropyLossConfig(LossSection, frozen=True, tag_field="kind", tag="cross_entropy"):
    """The log-probability, whatever the advantage: every sampled token is imitated. For ``asyncrl train-offline`` alone, on
    episodes that are worth it."""

    has_ratio: ClassVar[bool] = False
    imitates: ClassVar[bool] = True


LossConfig = (
    PpoClipLossConfig
    | GspoLossConfig
    | CispoLossConfig
    | SapoLossConfig
    | GmpoLossConfig
    | DivergenceMaskLossConfig
    | ClipCovLossConfig
    | KlCovLossConfig
    | ReinforceLossConfig
    | CrossEntropyLossConfig
    | CustomLossConfig
)
