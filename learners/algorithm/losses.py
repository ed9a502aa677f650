"""Policy losses: pure functions of tensors, summed so that parts of a batch add up to the batch's loss."""

from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.core.recipe.algorithm import AlgorithmConfig, KlInLossConfig
from asyncrl.core.recipe.custom import CustomLossConfig
from asyncrl.core.recipe.loss import (
    CispoLossConfig,
    ClipCovLossConfig,
    CrossEntropyLossConfig,
    DivergenceMaskLossConfig,
    GmpoLossConfig,
    GspoLossConfig,
    KlCovLossConfig,
    LossConfig,
    PpoClipLossConfig,
    ReinforceLossConfig,
    SapoLossConfig,
)
from asyncrl.learners.algorithm.corrections import Corrected, correct, held_ratio
from asyncrl.learners.algorithm.kl import OVERFLOW_GUARD, divergence, guarded, straight_through
from asyncrl.learners.algorithm.loss_tokens import LossTokens
from asyncrl.learners.custom.calls import call_loss, loaded
from asyncrl.learners.custom.inputs import LossInputs


class Outcome(NamedTuple):
    """The loss of a micro-batch, and what happened to each token.

    Attributes:
        loss: float32 scalar, this micro-batch's share of the batch's loss.
        log_ratio: [n], log of current over anchor probability, 0 outside the mask.
        clipped: bool [n], tokens in the loss whose gradient the loss itself cut.
        correction: see :class:`.corrections.Corrected`.
        weight: float32 [n], the importance weight of each token as the loss applied it; 0 where the token is not in the loss.
    """

    loss: Tensor
    log_ratio: Tensor
    clipped: Tensor
    correction: Corrected
    weight: Tensor


class Surrogate(NamedTuple):
    """The quantity that is maximised for each token, [n], and whether the clip cut its gradient, bool [n]."""

    value: Tensor
    clipped: Tensor


def policy_loss(
    logp_theta: Tensor,
    logp_proximal: Tensor,
    entropy: Tensor,
    tokens: LossTokens,
    config: AlgorithmConfig,
    denominator: float,
    kl_coefficient: float = 0.0,
) -> Outcome:
    """``-sum(share * (weight * (surrogate - kl_coefficient * kl) + entropy_bonus * entropy)) / denominator``, summed
    over the tokens in the mask.

    The surrogate is a function of ``ratio = pi_theta / pi_anchor``, the weight is a function of
    ``pi_anchor / pi_behaviour``, and ``kl`` is the estimated divergence from ``pi_theta`` to the reference times the
    ratio, held at most at the correction's bound and without gradient: an expectation under ``pi_theta`` is estimated
    from tokens that ``pi_behaviour`` sampled, so weight and ratio both multiply it. (GMPO weights its surrogate by the
    geometric mean of the row's weights.) A token that the correction rejects or masks contributes nothing: no term, no
    entropy, and no part of its row's mean ratio. It still counts in the denominator. Only ``logp_theta`` and
    ``entropy`` receive a gradient.

    Args:
        logp_theta, logp_proximal: [n], log-probabilities (nats) of the sampled tokens under the policy being optimised,
            and under the policy before the training step. Ratios are computed in float32, and their logarithms clamped
            to +-20; a token beyond that gets no gradient from its ratio, and counts as clipped.
        entropy: [n], nats.
        tokens: what is known of the tokens before the forward pass.
        denominator: divides the loss of the whole batch, see :func:`.aggregation.denominator`.
        kl_coefficient: multiplies the divergence where ``config.kl`` puts it in the loss.

    Raises:
        ValueError: if ``config.kl`` needs the log-probabilities under the reference and the tokens lack them; or if
            there is an entropy bonus and ``entropy`` has no gradient although ``logp_theta`` has one.
    """
    if config.entropy_bonus and logp_theta.requires_grad and not entropy.requires_grad:
        raise ValueError("the entropy has no gradient, so algorithm.entropy_bonus would have no effect")
    logp_theta = logp_theta.float()
    correction = correct(logp_theta, logp_proximal.float(), tokens, config.correction)
    # Set to zero outside the mask: any number may stand there, and 0 * inf is not 0.
    moved = torch.where(tokens.mask, logp_theta - correction.logp_anchor, 0.0)
    log_ratio = guarded(moved)
    decay = config.correction.trust_region_decay
    narrowing = decay ** tokens.staleness.float() if decay < 1 else 1.0
    kept = tokens.mask & ~correction.masked & ~correction.rejected
    surrogate = _surrogate(moved, torch.where(tokens.mask, logp_theta, 0.0), tokens, kept, config.loss, narrowing)
    weight = _mean_weight(correction.weight, tokens, kept) if isinstance(config.loss, GmpoLossConfig) else correction.weight
    value = weight * surrogate.value
    if isinstance(config.kl, KlInLossConfig):
        weighed = correction.weight * held_ratio(log_ratio, config.correction)
        value = value - kl_coefficient * weighed * _divergence_from_reference(logp_theta, tokens, config.kl)
    if config.entropy_bonus:
        value = value + config.entropy_bonus * torch.where(kept, entropy, 0.0)
    loss = -torch.where(kept, tokens.share * value, 0.0).sum() / denominator
    clipped = kept & (surrogate.clipped | _cut_by_the_guard(moved, tokens, config.loss))
    return Outcome(loss, log_ratio.detach(), clipped, correction, torch.where(kept, weight, 0.0))


def _divergence_from_reference(logp_theta: Tensor, tokens: LossTokens, config: KlInLossConfig) -> Tensor:
    if tokens.logp_reference is None:
        raise ValueError("the tokens have no log-probabilities under the reference policy that algorithm.kl measures from")
    log_ratio = torch.where(tokens.mask, logp_theta - tokens.logp_reference, 0.0)
    estimate = straight_through if config.straight_through else divergence
    return estimate(log_ratio, config.estimator)


def _surrogate(
    moved: Tensor, logp: Tensor, tokens: LossTokens, kept: Tensor, config: LossConfig, narrowing: Tensor | float
) -> Surrogate:
    """The surrogate of each of the ``kept`` tokens (bool [n]).

    Args:
        moved: [n], log of current over anchor probability, not clamped.
        narrowing: multiplies the clip range.
    """
    advantages, log_ratio = tokens.advantages, guarded(moved)
    match config:
        case PpoClipLossConfig(clip_low=low, clip_high=high, dual_clip=dual_clip):
            return _dual(_clip(log_ratio.exp(), advantages, low * narrowing, high * narrowing), advantages, dual_clip)
        case GspoLossConfig(clip_low=low, clip_high=high):
            return _clip(_row_ratio(log_ratio, tokens, kept), advantages, low * narrowing, high * narrowing)
        case CispoLossConfig(clip_low=low, clip_high=high):
            # Only the upper end narrows: a lower end nearer to 1 would make staler tokens weigh more.
            weight = _held(log_ratio.detach().exp(), low, high * narrowing)
            return Surrogate(weight * advantages * logp, torch.zeros_like(tokens.mask))
        case SapoLossConfig(tau_positive=positive, tau_negative=negative):
            tau = torch.where(advantages > 0, positive, negative)
            gate = 4.0 / tau * torch.sigmoid(tau * (log_ratio.exp() - 1.0))
            return Surrogate(gate * advantages, torch.zeros_like(tokens.mask))
        case GmpoLossConfig(clip=clip):
            return _geometric_mean(log_ratio, tokens, kept, clip * narrowing)
        case DivergenceMaskLossConfig():
            return _divergence_mask(log_ratio, logp, advantages, config, narrowing)
        case ClipCovLossConfig(clip_low=low, clip_high=high):
            clipped = _clip(log_ratio.exp(), advantages, low * narrowing, high * narrowing)
            value = torch.where(tokens.singled_out, clipped.value.detach(), clipped.value)
            return Surrogate(value, clipped.clipped | tokens.singled_out)
        case KlCovLossConfig(coefficient=coefficient):
            # Not clamped: it is finite anyway, and it is what leads a token back that has moved too far.
            penalty = torch.where(tokens.singled_out, coefficient * moved.abs(), 0.0)
            return Surrogate(log_ratio.exp() * advantages - penalty, torch.zeros_like(tokens.mask))
        case ReinforceLossConfig():
            return Surrogate(advantages * logp, torch.zeros_like(tokens.mask))
        case CrossEntropyLossConfig():
            return Surrogate(logp, torch.zeros_like(tokens.mask))
        case CustomLossConfig():
            custom = call_loss(loaded(config), _inputs(log_ratio, logp, tokens, kept))
            return Surrogate(-custom.losses, custom.clipped)


def _cut_by_the_guard(moved: Tensor, tokens: LossTokens, config: LossConfig) -> Tensor:
    """bool [n], tokens that would have a gradient, had their log-ratio not been clamped."""
    match config:
        case (
            CispoLossConfig() | DivergenceMaskLossConfig() | ReinforceLossConfig() | CrossEntropyLossConfig() | CustomLossConfig()
        ):
            # Their gradient does not pass through the ratio; a function of the user's says itself what it cut.
            return torch.zeros_like(tokens.mask)
        case KlCovLossConfig():
            through_ratio = ~tokens.singled_out
        case _:
            through_ratio = tokens.mask
    return through_ratio & (moved.abs() > OVERFLOW_GUARD) & (tokens.advantages != 0)


def _inputs(log_ratio: Tensor, logp: Tensor, tokens: LossTokens, kept: Tensor) -> LossInputs:
    return LossInputs(
        logp=logp,
        log_ratio=log_ratio,
        logp_behaviour=tokens.logp_behaviour,
        logp_reference=tokens.logp_reference,
        advantages=tokens.advantages,
        staleness=tokens.staleness,
        mask=kept,
        rows=tokens.rows,
        turns=tokens.turns,
    )


def _held(ratio: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """The ratio, clamped to between ``1 - low`` and ``1 + high``."""
    return ratio.clamp(_like(1.0 - low, ratio), _like(1.0 + high, ratio))


def _clip(ratio: Tensor, advantages: Tensor, low: Tensor | float, high: Tensor | float) -> Surrogate:
    """``min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)``."""
    free = ratio * advantages
    held = _held(ratio, low, high) * advantages
    return Surrogate(torch.minimum(free, held), held < free)


def _dual(surrogate: Surrogate, advantages: Tensor, bound: float) -> Surrogate:
    """The surrogate, but at least ``bound * A`` where the advantage is negative."""
    if not bound:
        return surrogate
    least = bound * advantages
    below = (advantages < 0) & (surrogate.value < least)
    return Surrogate(torch.where(below, least, surrogate.value), surrogate.clipped | below)


def _row_ratio(log_ratio: Tensor, tokens: LossTokens, kept: Tensor) -> Tensor:
    """[n], the geometric mean of the row's kept ratios, with the gradient of each token's own log-probability.

    If a row has one advantage, these gradients add up to the gradient of the mean itself. If it has one for each turn,
    each token answers for its own (GSPO-token, Zheng et al. 2025, arXiv:2507.18071).
    """
    mean = tokens.rows.means(log_ratio.detach(), kept)[tokens.rows.index]
    return mean.exp() * (1.0 + log_ratio - log_ratio.detach())


def _geometric_mean(log_ratio: Tensor, tokens: LossTokens, kept: Tensor, clip: Tensor | float) -> Surrogate:
    """``A * exp(mean of the row's kept log-ratios)``. Each log-ratio is clipped where it would make the term larger
    (Zhao et al. 2025, arXiv:2507.20673)."""
    up = tokens.advantages > 0
    held = torch.where(up, torch.minimum(log_ratio, _like(clip, log_ratio)), torch.maximum(log_ratio, -_like(clip, log_ratio)))
    mean = tokens.rows.means(held, kept)[tokens.rows.index]
    return Surrogate(mean.exp() * tokens.advantages, held.detach() != log_ratio.detach())


def _mean_weight(weight: Tensor, tokens: LossTokens, kept: Tensor) -> Tensor:
    """[n], the geometric mean of the weights of the row's kept tokens.

    GMPO maximises the geometric mean of what each token contributes. A token of weight ``w`` contributes
    ``w * ratio * A``, so the mean of the weights multiplies the mean of the ratios. Without bound and clip, their
    product is the mean of ``pi_theta / pi_behaviour``.
    """
    logs = guarded(weight.log())
    return tokens.rows.means(logs, kept)[tokens.rows.index].exp()


def _divergence_mask(
    log_ratio: Tensor, logp: Tensor, advantages: Tensor, config: DivergenceMaskLossConfig, narrowing: Tensor | float
) -> Surrogate:
    """``min(ratio, max_ratio) * A * log pi``, with no gradient through the ratio; 0 for tokens that have already moved
    too far in the direction of ``A``."""
    now, before = logp.detach().exp(), (logp - log_ratio).detach().exp()
    moved = now - before
    if config.divergence == "tv":
        distance = moved.abs()
    else:
        others = ((1.0 - before).clamp(min=1e-8) / (1.0 - now).clamp(min=1e-8)).log()
        distance = (1.0 - before) * others - before * log_ratio.detach()
    up = advantages > 0
    low, high = config.bounds
    too_far = torch.where(up, moved > 0, moved < 0) & (distance > torch.where(up, high, low) * narrowing)
    weight = log_ratio.detach().exp().clamp(max=config.max_ratio)
    return Surrogate(torch.where(too_far, 0.0, weight * advantages * logp), too_far)


def _like(value: Tensor | float, other: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=other.dtype, device=other.device).expand_as(other)
