"""Corrections for tokens that an older policy sampled than the one being trained. Pure functions of tensors.

A correction makes three independent choices: which policy anchors the loss's ratio, how the ratio of anchor to
behaviour probability weights a token, and which tokens are left out. Nothing here has a gradient. No
weight is a product over a whole row, because its variance would grow exponentially with length.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.core.recipe.correction import (
    CorrectionConfig,
    MaskBoundConfig,
    NormalizedBoundConfig,
    RejectDivergenceConfig,
    RejectionConfig,
    RejectOffPolicySequenceConfig,
    RejectRatioConfig,
    RejectSecondMomentConfig,
    TruncateBoundConfig,
)
from asyncrl.core.recipe.custom import CustomWeightConfig
from asyncrl.learners.algorithm.kl import divergence, guarded
from asyncrl.learners.algorithm.loss_tokens import LossTokens
from asyncrl.learners.algorithm.segments import Segments
from asyncrl.learners.custom.calls import call_weight, loaded
from asyncrl.learners.custom.inputs import WeightInputs


class Corrected(NamedTuple):
    """The outcome of the correction for each token; all tensors are [n].

    Attributes:
        logp_anchor: float32, log-probability under the anchor, the policy that the loss's ratio is taken to.
        weight: float32, factor of the loss term; at least 0.
        truncated: bool, whether the bound reduced the weight.
        masked: bool, whether the token is left out because its weight is out of bounds.
        rejected: bool, whether a criterion leaves the token out.
    """

    logp_anchor: Tensor
    weight: Tensor
    truncated: Tensor
    masked: Tensor
    rejected: Tensor


def correct(logp_theta: Tensor, logp_proximal: Tensor, tokens: LossTokens, config: CorrectionConfig) -> Corrected:
    """Correct each token for having been sampled by an older policy.

    Args:
        logp_theta, logp_proximal: float32 [n], log-probabilities under the policy being optimised, and under the policy
            before the training step.

    Source: the decoupled objective of Hilton et al. 2022, arXiv:2110.00641; truncation, Espeholt et al. 2018,
    arXiv:1802.01561; two-sided mask, Ling Team 2025, arXiv:2510.18855; log-linear anchor, Li et al. 2025,
    arXiv:2512.06547; masking whole sequences, Li et al. 2025, arXiv:2512.23075; masking sequences with a negative
    advantage, DeepSeek-AI 2025, arXiv:2512.02556. For criteria over the whole batch, see the sources in
    :mod:`.batch_correction`.

    Raises:
        ValueError: if ``config`` has a criterion over the whole batch, and ``tokens`` do not say which tokens it
            rejects.
    """
    logp_theta, logp_proximal = logp_theta.detach(), logp_proximal.detach()
    logp_anchor = _anchor(logp_theta, logp_proximal, tokens, config.anchor)
    # Set to zero outside the mask: any number may stand there, and 0 * inf is not 0.
    to_anchor = torch.where(tokens.mask, logp_anchor - tokens.logp_behaviour, 0.0)
    to_proximal = torch.where(tokens.mask, logp_proximal - tokens.logp_behaviour, 0.0)
    to_theta = torch.where(tokens.mask, logp_theta - tokens.logp_behaviour, 0.0)
    rejected = torch.zeros_like(tokens.mask)
    for criterion in config.reject:
        rejected |= _rejected(to_proximal, to_theta, tokens, criterion)
    weight = _importance(to_anchor, tokens, config.weight)
    match config.bound:
        case TruncateBoundConfig(upper=upper):
            return Corrected(logp_anchor, weight.clamp(max=upper), weight > upper, torch.zeros_like(rejected), rejected)
        case NormalizedBoundConfig(upper=upper):
            normalised = weight.clamp(max=upper) / tokens.mean_weight
            return Corrected(logp_anchor, normalised, weight > upper, torch.zeros_like(rejected), rejected)
        case MaskBoundConfig(lower=lower, upper=upper):
            masked = (weight < lower) | (weight > upper)
            return Corrected(logp_anchor, torch.where(masked, 0.0, weight), torch.zeros_like(rejected), masked, rejected)


def held_ratio(log_ratio: Tensor, config: CorrectionConfig) -> Tensor:
    """[n], the ratio of a policy to the anchor, at most the bound of the weights, and without gradient.

    Times the weight of anchor to behaviour probability, it makes the mean over tokens that older policies sampled an
    estimate of the expectation under that policy.

    Args:
        log_ratio: [n], log of the policy's over the anchor's probability.
    """
    return guarded(log_ratio.detach()).exp().clamp(max=config.bound.upper)


def _anchor(logp_theta: Tensor, logp_proximal: Tensor, tokens: LossTokens, anchor: str) -> Tensor:
    """The log-probability of each token under the anchor.

    For a token that is ``d`` versions old, the log-linear anchor lies ``1 / d`` of the way from the current policy back
    to the behaviour policy. A fresh token, like a token one version old, is anchored at the behaviour policy itself:
    anchored at the current policy, its ratio would always be 1, and nothing would clip it in the later optimizer steps
    of its batch.
    """
    match anchor:
        case "behaviour":
            return tokens.logp_behaviour
        case "proximal_log_linear":
            forward = 1.0 - 1.0 / tokens.staleness.clamp(min=1)
            return tokens.logp_behaviour + forward * (logp_theta - tokens.logp_behaviour)
        case _:
            return logp_proximal


def _importance(log_ratio: Tensor, tokens: LossTokens, level: str | CustomWeightConfig) -> Tensor:
    if isinstance(level, CustomWeightConfig):
        return call_weight(loaded(level), _inputs(log_ratio, tokens))
    if level == "none":
        return torch.ones_like(log_ratio)
    segments = units(tokens, level)
    if segments is not None:
        log_ratio = segments.means(log_ratio, tokens.mask)[segments.index]
    return log_ratio.exp()


def _inputs(log_ratio: Tensor, tokens: LossTokens) -> WeightInputs:
    return WeightInputs(
        log_ratio=log_ratio,
        logp_behaviour=tokens.logp_behaviour,
        advantages=tokens.advantages,
        staleness=tokens.staleness,
        mask=tokens.mask,
        rows=tokens.rows,
        turns=tokens.turns,
    )


def _rejected(log_ratio: Tensor, to_theta: Tensor, tokens: LossTokens, criterion: RejectionConfig) -> Tensor:
    """bool [n], the tokens that a criterion rejects. Ratios are compared as logarithms, so that a sum over a long row
    cannot overflow.

    Args:
        log_ratio, to_theta: [n], log-ratios to the behaviour policy: that of the policy before the training step, and
            that of the policy being optimised.
    """
    match criterion:
        case RejectSecondMomentConfig():
            if tokens.outliers is None:
                raise ValueError("a reject of kind second_moment needs outliers; find them over the whole batch beforehand")
            return tokens.mask & tokens.outliers
        case RejectOffPolicySequenceConfig(upper=upper):
            return tokens.mask & (tokens.advantages < 0) & (_reduced(-to_theta, tokens, "sequence", "mean") > upper)
        case RejectRatioConfig(level=level, reduce=reduce, lower=lower, upper=upper):
            low, high = torch.tensor([lower, upper], dtype=log_ratio.dtype, device=log_ratio.device).log().unbind()
            largest = _reduced(log_ratio, tokens, level, reduce)
            # The lower bound applies to the smallest value.
            smallest = -_reduced(-log_ratio, tokens, level, reduce)
            return tokens.mask & ((largest > high) | (smallest < low))
        case RejectDivergenceConfig(estimator=estimator, level=level, reduce=reduce, upper=upper):
            return tokens.mask & (_reduced(divergence(-log_ratio, estimator), tokens, level, reduce) > upper)


def _reduced(values: Tensor, tokens: LossTokens, level: str, reduce: str) -> Tensor:
    """[n], each token gets the reduction of ``values`` over its unit, see :func:`units`."""
    segments = units(tokens, level)
    if segments is None:
        return values
    match reduce:
        case "mean":
            whole = segments.means(values, tokens.mask)
        case "sum":
            whole = segments.sums(torch.where(tokens.mask, values, 0.0))
        case _:
            whole = segments.maxima(values, tokens.mask)
    return whole[segments.index]


def units(tokens: LossTokens, level: str) -> Segments | None:
    """The turns or rows that ``level`` treats as units; None if every token is a unit of its own."""
    return {"segment": tokens.turns, "sequence": tokens.rows}.get(level)
