"""The first argument of each kind of function that a recipe can name in place of built-in mathematics.

Only :attr:`LossInputs.logp` and :attr:`LossInputs.log_ratio` have a gradient. All rows of a micro-batch are whole, whatever
the parallel layout: tensor-, pipeline-, data- and context-parallel ranks see the same tokens of a row.
"""

import msgspec
from torch import Tensor

from asyncrl.learners.algorithm.segments import Segments


class LossInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The ``n`` sampled tokens of one micro-batch of whole rows, end to end, for a loss.

    The function returns the loss of each token, float32 [n], which is minimised; or a pair of this and bool [n], the
    tokens whose gradient the loss cut, which ``loss/clip_fraction`` counts. What it returns outside ``mask`` is not used.

    Attributes:
        logp: float32 [n], log-probability (nats) under the policy being optimised, with gradient.
        log_ratio: float32 [n], ``logp`` minus the log-probability under the policy that ``algorithm.correction.anchor``
            names, with gradient; clamped to +-20, and 0 for tokens that are too old to be trained.
        logp_behaviour: float32 [n], log-probability under the policy that sampled the token.
        logp_reference: float32 [n], log-probability under the reference policy; None if ``algorithm.kl`` keeps none.
        advantages: float32 [n], the advantage of the token's episode or turn.
        staleness: int [n], policy versions between sampling and training.
        mask: bool [n], tokens that are trained: not too old, and not left out by the correction. Use it in every sum or
            mean over tokens.
        rows, turns: the row, and the turn, that each token belongs to. ``rows.index`` is int64 [n], and
            ``rows.means(values, mask)[rows.index]`` gives each token the mean over its row.
    """

    logp: Tensor
    log_ratio: Tensor
    logp_behaviour: Tensor
    logp_reference: Tensor | None = None
    advantages: Tensor
    staleness: Tensor
    mask: Tensor
    rows: Segments
    turns: Segments


class WeightInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The ``n`` sampled tokens of one micro-batch of whole rows, end to end, for an importance weight. Nothing has a gradient.

    The function returns the weight of each token, float32 [n], at least 0: a factor of the token's loss, before
    ``algorithm.correction.bound``.

    Attributes:
        log_ratio: float32 [n], log of anchor over behaviour probability (see ``algorithm.correction.anchor``), so always
            0 with anchor ``behaviour``; 0 outside ``mask``.
        logp_behaviour: float32 [n], log-probability (nats) under the policy that sampled the token.
        advantages: float32 [n], the advantage of the token's episode or turn.
        staleness: int [n], policy versions between sampling and training.
        mask: bool [n], tokens that are not too old to be trained. Use it in every sum or mean over tokens.
        rows, turns: the row, and the turn, that each token belongs to; see :class:`LossInputs`.
    """

    log_ratio: Tensor
    logp_behaviour: Tensor
    advantages: Tensor
    staleness: Tensor
    mask: Tensor
    rows: Segments
    turns: Segments


class AggregationInputs(msgspec.Struct, frozen=True, kw_only=True):
    """All sequences of one optimizer step, over all micro-batches and ranks, for an aggregation. A sequence is an episode, or
    each of its trajectories: ``algorithm.aggregation.unit``.

    The function returns a pair ``(shares, denominator)``: float [sequences], at least 0, and a number above 0. The loss is the
    sum over sequences of ``weights * shares * sum of the sequence's token losses``, divided by ``denominator``.

    Attributes:
        loss_tokens: int64 [sequences], tokens of each sequence that may enter the loss; 0 for one that is too old.
        weights: float64 [sequences], factors that remove the sampler's bias; 1 where the sampler needs none.
    """

    loss_tokens: Tensor
    weights: Tensor


class ScheduleInputs(msgspec.Struct, frozen=True, kw_only=True):
    """One training step, for a learning-rate schedule.

    The function returns the learning rate of the step, a number of at least 0.

    Attributes:
        step: the training step, counted from 0. All optimizer steps of a training step have one learning rate.
        steps: training steps of the run.
        lr, warmup_steps, min_lr_ratio: the recipe's ``learner.lr``, ``learner.warmup_steps`` and ``learner.min_lr_ratio``.
    """

    step: int
    steps: int
    lr: float
    warmup_steps: int
    min_lr_ratio: float
