"""What a step tells about the data it trained on: staleness by cause, mismatch with the engine, entropy, sample size."""

import torch
from torch import Tensor

from asyncrl.core.metrics import Reading, Reduction
from learners import metrics
from learners.losses import k3
from learners.micro_batch import MicroBatch
from learners.tally import Tally, tally_count, tally_means


def observe(batch: MicroBatch, logp: Tensor, entropy: Tensor, max_staleness: int) -> Tally:
    """Tally of one micro-batch.

    The gap between engine and learner is taken over tokens that the version being trained has sampled itself: only there do both
    sides compute the same number, and only their arithmetic differs.

    Args:
        logp: float32 [n], log-probabilities under the version being trained.
        entropy: float32 [n], nats.
        max_staleness: number of bars of the staleness histogram, less one.
    """
    trained, stale = batch.mask, ~batch.mask
    gap = logp - batch.logp_behaviour
    tally = tally_means(
        {
            metrics.ENTROPY: entropy,
            metrics.STALENESS_MEAN: batch.staleness.float(),
            metrics.STALENESS_IN_BUFFER: batch.in_buffer.float(),
            metrics.STALENESS_IN_FLIGHT: (batch.staleness - batch.in_buffer).float(),
        },
        trained,
    )
    tally |= tally_means({metrics.LOGPROB_GAP: gap.abs(), metrics.MISMATCH_K3: k3(gap)}, trained & (batch.staleness == 0))
    tally |= tally_count(metrics.TOKENS, trained) | tally_count(metrics.TOKENS_MASKED_STALE, stale)
    for staleness in range(max_staleness + 1):
        tally |= tally_count(metrics.tokens_at(staleness), trained & (batch.staleness == staleness))
    return tally


def readings_of(tally: Tally, max_staleness: int) -> list[Reading]:
    """Readings of the whole batch's tally, those that follow from several sums included. A mean of nothing is left out."""
    readings = []
    for metric, sums in tally.items():
        total, weight = sums.tolist()
        if metric.reduction is not Reduction.MEAN:
            readings.append(Reading(metric, total))
        elif weight > 0:
            readings.append(Reading(metric, total / weight, weight))
    seen = [staleness for staleness in range(max_staleness + 1) if tally[metrics.tokens_at(staleness)][0] > 0]
    readings.append(Reading(metrics.STALENESS_MAX, float(max(seen))))
    ratio, ratio_square = (torch.div(*tally[metric]).item() for metric in (metrics.RATIO_MEAN, metrics.RATIO_SQUARE_MEAN))
    readings.append(Reading(metrics.EFFECTIVE_SAMPLE_SIZE, ratio**2 / ratio_square))
    return readings
