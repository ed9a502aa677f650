"""Policy losses: pure functions of tensors, summed so that parts of a batch add up to the batch's loss.

The denominator is that of the whole batch, fixed before anything is rejected. Micro-batches, packing and data parallelism
therefore never change the loss or its gradient.
"""

import torch
from torch import Tensor

from asyncrl.core.recipe.schema import Algorithm
from learners import metrics
from learners.corrections import importance_weights
from learners.tally import Tally, tally_means

_OVERFLOW_GUARD = 20.0
"""Log-ratios of diagnostics are held within this, so that one token cannot make a mean infinite."""


def policy_loss(
    logp_theta: Tensor,
    logp_proximal: Tensor,
    logp_behaviour: Tensor,
    advantages: Tensor,
    mask: Tensor,
    config: Algorithm,
    denominator: float,
) -> tuple[Tensor, Tally]:
    """The clipped surrogate around the proximal policy, weighted for the behaviour policy: the decoupled PPO objective.

    ``-sum(mask * weight * min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)) / denominator`` with
    ``ratio = pi_theta / pi_proximal`` and ``weight`` the correction of ``pi_proximal / pi_behaviour``. Only ``logp_theta``
    receives a gradient.

    Args:
        logp_theta, logp_proximal, logp_behaviour: [tokens] log-probabilities (nats) of the sampled tokens under the policy being
            optimised, the one that bounds the step, and the one that sampled. Ratios are formed in float32.
        advantages: float32 [tokens].
        mask: bool [tokens], which tokens enter.
        denominator: tokens in the loss of the whole batch.

    Returns:
        The part's share of the batch's loss (float32 scalar), and the tally of its metrics.

    Source: Schulman et al. 2017, arXiv:1707.06347; decoupled, Hilton et al. 2022, arXiv:2110.00641; asymmetric range, Yu et al.
    2025, arXiv:2503.14476.
    """

    def log_ratio(numerator: Tensor, divisor: Tensor) -> Tensor:
        # Cleared where masked: what stands there may be anything, and 0 * inf is no zero.
        return torch.where(mask, numerator.float() - divisor.float(), 0.0)

    to_theta = log_ratio(logp_theta, logp_proximal.detach())
    to_proximal = log_ratio(logp_proximal.detach(), logp_behaviour)
    ratio = to_theta.exp()
    clipped = ratio.clamp(1.0 - config.loss.clip_low, 1.0 + config.loss.clip_high)
    weight = importance_weights(to_proximal, config.correction)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    terms = -weight * torch.where(mask, surrogate, 0.0)

    held = to_proximal.clamp(-_OVERFLOW_GUARD, _OVERFLOW_GUARD)
    unbounded = held.exp()
    per_token = {
        metrics.POLICY_LOSS: terms,
        metrics.CLIP_FRACTION: (clipped * advantages < ratio * advantages).float(),
        metrics.KL_PROXIMAL_THETA: k3(to_theta),
        metrics.IMPORTANCE_WEIGHT: weight,
        metrics.TRUNCATED_FRACTION: (weight < unbounded).float(),
        metrics.RATIO_MEAN: unbounded,
        metrics.RATIO_SQUARE_MEAN: unbounded.square(),
        metrics.BEHAVIOUR_K3: k3(to_proximal),
    }
    return terms.sum() / denominator, tally_means(per_token, mask)


def k3(log_ratio: Tensor) -> Tensor:
    """``r - 1 - log r`` of each token; ``r = exp(log_ratio)`` is its probability over that under the policy that sampled it."""
    held = log_ratio.detach().clamp(-_OVERFLOW_GUARD, _OVERFLOW_GUARD)
    return held.expm1() - held
