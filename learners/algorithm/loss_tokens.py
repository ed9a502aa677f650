"""What the loss needs to know about each sampled token before the forward pass."""

import msgspec
from torch import Tensor

from asyncrl.learners.algorithm.segments import Segments


class LossTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The ``n`` sampled tokens of whole rows, packed end to end.

    Attributes:
        logp_behaviour: float32 [n], nats; finite.
        advantages: float32 [n].
        mask: bool [n], which tokens may enter the loss; the batch's denominator counts these.
        share: float32 [n], factor of each token's loss term: its row's share in the aggregation, times the row's
            sampler weight.
        staleness: int [n], versions between sampling and training.
        rows, turns: the row, and the turn, that each token belongs to.
        singled_out: bool [n], tokens that a covariance loss treats differently.
        max_staleness: the largest staleness that a token in the mask may have.
        logp_reference: float32 [n], nats, under the reference policy; None without a reference, and on all pipeline
            stages but the last.
        logp_teacher: float32 [n], nats, under the teacher; None without one.
        outliers: bool [n], tokens that a criterion over the whole batch rejects; None without such a criterion, and on
            all pipeline stages but the last.
        mean_weight: mean weight over the whole batch; a correction that normalises weights divides them by it.
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
    logp_teacher: Tensor | None = None
    outliers: Tensor | None = None
    mean_weight: float = 1.0
