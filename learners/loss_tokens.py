"""What the loss has to know about each sampled token before the forward pass."""

import msgspec
from torch import Tensor

from learners.segments import Segments


class LossTokens(msgspec.Struct, frozen=True, kw_only=True):
    """``n`` sampled tokens of packed whole rows.

    Attributes:
        logp_behaviour: float32 [n], nats; finite.
        advantages: float32 [n].
        mask: bool [n], which tokens may enter the loss; the batch's denominator counts these.
        share: float32 [n], factor of each token's loss term: its row's share in the aggregation, times the sampler's weight of
            the row.
        staleness: int [n], versions between sampling and training.
        rows, turns: the row, and the turn, that each token belongs to.
        singled_out: bool [n], tokens that a covariance loss treats apart.
        max_staleness: the largest staleness a token in the mask may have.
        logp_reference: float32 [n], nats, under the reference policy; None where there is none, and off the last pipeline stage.
        outliers: bool [n], tokens that a criterion over the whole batch rejects; None where there is no such criterion, and off
            the last pipeline stage.
        mean_weight: mean weight of the whole batch, by which a correction that normalises weights divides them.
    """

    logp_behaviour: Tensor
    advantages: Tensor
    mask: Tensor
    share: Tensor
    staleness: Tensor
    rows: Segments
    turns: Segments
    singled_out: Tensor
    max_staleness: int
    logp_reference: Tensor | None = None
    outliers: Tensor | None = None
    mean_weight: float = 1.0
