"""Estimators of a KL divergence from samples, and the control of its coefficient. Pure functions.

All estimate ``KL(p || q)`` from tokens that ``p`` sampled, given ``log p - log q`` of each token (Schulman 2020,
"Approximating KL divergence").
"""

import math
from typing import Literal

import torch
from torch import Tensor

KlEstimator = Literal["k1", "abs", "k2", "k3"]

OVERFLOW_GUARD = 20.0
"""Log-ratios are clamped to plus or minus this before they are exponentiated, so that one token cannot make a sum
infinite."""


def guarded(log_ratio: Tensor) -> Tensor:
    """``log_ratio``, clamped so that it can be exponentiated. It has no gradient beyond the guard."""
    return log_ratio.clamp(-OVERFLOW_GUARD, OVERFLOW_GUARD)


def divergence(log_ratio: Tensor, estimator: KlEstimator) -> Tensor:
    """[n], the estimate for each token, with ``d = log p - log q``.

    ``k1`` is ``d``, unbiased and of either sign; ``abs`` is ``|d|``; ``k2`` is ``d**2 / 2``; ``k3`` is
    ``exp(-d) - 1 + d``, unbiased and never negative. Estimates are not capped: without its rare large values, the mean
    of ``k3`` would be too small exactly where the divergence is large, and a capped token would have no gradient that
    leads back. Where ``d`` is below -20, the exponential continues as a straight line with the slope that it has there,
    which keeps sums finite and still leads back.

    Args:
        log_ratio: [n], ``log p - log q`` of tokens that ``p`` sampled.
    """
    match estimator:
        case "k1":
            return log_ratio
        case "abs":
            return log_ratio.abs()
        case "k2":
            return log_ratio.square() / 2
        case "k3":
            curve = (-log_ratio.clamp(min=-OVERFLOW_GUARD)).expm1()
            line = math.expm1(OVERFLOW_GUARD) - math.exp(OVERFLOW_GUARD) * (log_ratio + OVERFLOW_GUARD)
            return torch.where(log_ratio < -OVERFLOW_GUARD, line, curve) + log_ratio


def straight_through(log_ratio: Tensor, estimator: KlEstimator) -> Tensor:
    """[n], the value of ``estimator`` with the gradient of ``k2``, whose expectation is the gradient of the divergence
    itself.

    The gradient of ``k1`` has expectation 0, and that of ``k3`` belongs to the reversed divergence: as a loss, neither
    lowers ``KL(p || q)`` (Tang and Munos 2025, arXiv:2506.09477).
    """
    surrogate = divergence(log_ratio, "k2")
    return divergence(log_ratio.detach(), estimator) + surrogate - surrogate.detach()


def kl_in_reward(turn_ends: Tensor, rewards: Tensor, divergences: Tensor, coefficient: float) -> Tensor:
    """[n], the reward of each token: minus ``coefficient`` times its divergence and, at ``turn_ends``, plus the
    environment's reward.

    Args:
        turn_ends: int64 [turns], the index of the last sampled token of each turn.
        rewards: [turns], the environment's reward of each turn.
        divergences: [n], see :func:`divergence`.
    """
    return (-coefficient * divergences.detach()).index_add(0, turn_ends, rewards.to(divergences.dtype))


def adapted_coefficient(coefficient: float, observed: float, target: float, horizon: float) -> float:
    """The coefficient for the next training step. It moves so that the divergence stays near ``target`` nats.

    Args:
        horizon: number of training steps over which the coefficient can change by a factor of about ``exp(0.2)``.

    Source: Ziegler et al. 2019, arXiv:1909.08593, section 2.2.
    """
    error = min(max(observed / target - 1.0, -0.2), 0.2)
    return coefficient * (1.0 + error / horizon)
