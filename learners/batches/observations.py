"""Readings about the data of a training step: staleness by cause, distances between policies, and tokens left out."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from asyncrl.core.measures.gap_sums import SURE, UNLIKELY, log_odds_line
from asyncrl.core.measures.metrics import Reading, Reduction
from asyncrl.core.recipe.correction import CorrectionConfig
from asyncrl.learners import metrics
from asyncrl.learners.algorithm.corrections import held_ratio
from asyncrl.learners.algorithm.kl import divergence, guarded
from asyncrl.learners.algorithm.losses import Outcome
from asyncrl.learners.algorithm.value_loss import ValueOutcome
from asyncrl.learners.batches.metric_tallies import Tally, add_to, tally_count, tally_means, tally_total
from asyncrl.learners.batches.micro_batch import MicroBatch

LEAST_BARS = 16
"""Ages that the staleness histogram has a bar for in every step, if the bound allows them; older ones where there are tokens."""


def observe(batch: MicroBatch, logp: Tensor, entropy: Tensor, outcome: Outcome, correction: CorrectionConfig) -> Tally:
    """Compute the tally of one micro-batch.

    Args:
        batch: the micro-batch.
        logp: float32 [n], log-probabilities under the version being trained, without gradient.
        entropy: float32 [n], nats.
        outcome: the loss, and what happened to each token in it.
        correction: the recipe's, with which the loss was computed.
    """
    tally = tally_total(metrics.POLICY_LOSS, outcome.loss)
    tally |= _staleness(batch)
    tally |= _distances(batch, logp, entropy, outcome)
    if batch.logp_reference is not None:
        weight = outcome.correction.weight * held_ratio(logp - outcome.correction.logp_anchor, correction)
        of_tokens = weight * divergence(logp - batch.logp_reference, "k3")
        tally |= tally_means({metrics.KL_REFERENCE: of_tokens}, _kept(batch, outcome))
    if batch.logp_teacher is not None:
        weight = outcome.correction.weight * held_ratio(logp - outcome.correction.logp_anchor, correction)
        tally |= tally_means({metrics.TEACHER_KL: weight * (logp - batch.logp_teacher)}, _kept(batch, outcome))
    tally |= _left_out(batch, outcome)
    return tally


def off_policy_steps(batch: MicroBatch, steps: int, taken: int) -> Tally:
    """Tally how many optimizer steps old the tokens are.

    Args:
        batch: the micro-batch.
        steps: optimizer steps from one version to the next.
        taken: optimizer steps already taken on this batch.
    """
    return tally_means({metrics.STALENESS_STEPS: (batch.staleness * steps + taken).float()}, batch.mask)


def observe_critic(batch: MicroBatch, outcome: ValueOutcome) -> Tally:
    """Compute the critic's tally of one micro-batch that it was trained on."""
    assert batch.values is not None
    assert batch.returns is not None
    return tally_total(metrics.VALUE_LOSS, outcome.loss) | tally_means(
        {
            metrics.VALUE_MEAN: batch.values,
            metrics.RETURN_MEAN: batch.returns,
            metrics.RETURN_SQUARE_MEAN: batch.returns.square(),
            metrics.VALUE_ERROR: (batch.values - batch.returns).square(),
            metrics.VALUE_CLIP_FRACTION: outcome.clipped.float(),
        },
        batch.mask,
    )


def over_steps(tallies: Sequence[Tally], epochs: float) -> Tally:
    """Combine the tallies of the optimizer steps into one of the whole batch. Means are over all tokens of all steps,
    counts are of one pass over the batch, and a loss is the mean of the steps' losses.

    Args:
        tallies: one for each optimizer step.
        epochs: how many passes over the batch the steps made.
    """
    total: Tally = {}
    for tally in tallies:
        add_to(total, tally)
    for metric, sums in total.items():
        if metric.reduction is not Reduction.MEAN:
            total[metric] = sums / (len(tallies) if metric in (metrics.POLICY_LOSS, metrics.VALUE_LOSS) else epochs)
    return total


def staleness_buckets(max_staleness: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last staleness of each bucket, up to ``max_staleness``: 0, 1, 2, 3 to 4, 5 to 8 and so on,
    doubling."""
    youngest, oldest = 0, 0
    while youngest <= max_staleness:
        yield youngest, min(oldest, max_staleness)
        youngest, oldest = oldest + 1, max(2 * oldest, 1)


def readings_of(tally: Tally) -> list[Reading]:
    """Readings of the whole batch, including those computed from several sums. A mean over no tokens is left out."""
    readings = []
    for metric, sums in tally.items():
        total, weight = sums.tolist()
        if metric in metrics.LOG_ODDS_SUMS:
            continue
        if metric.reduction is not Reduction.MEAN:
            readings.append(Reading(metric, total))
        elif weight > 0:
            readings.append(Reading(metric, total / weight, weight))
    bars = [metric.name for metric, sums in tally.items() if metric.name.startswith(metrics.TOKENS_AT) and sums[0] > 0]
    readings.append(Reading(metrics.STALENESS_MAX, float(max(int(name.removeprefix(metrics.TOKENS_AT)) for name in bars))))
    ratio, ratio_square = (tally[metric][0] / tally[metric][1] for metric in (metrics.RATIO_MEAN, metrics.RATIO_SQUARE_MEAN))
    readings.append(Reading(metrics.EFFECTIVE_SAMPLE_SIZE, (ratio**2 / ratio_square).item()))
    odds = [tally[metric].tolist() for metric in metrics.LOG_ODDS_SUMS]
    if (line := log_odds_line([odds[0][1], *(total for total, _ in odds)])) is not None:
        readings += [Reading(metrics.LOG_ODDS_SLOPE, line[0]), Reading(metrics.LOG_ODDS_EXPLAINED, line[1])]
    if metrics.VALUE_ERROR in tally:
        returned, square, error = (
            (tally[metric][0] / tally[metric][1]).item()
            for metric in (metrics.RETURN_MEAN, metrics.RETURN_SQUARE_MEAN, metrics.VALUE_ERROR)
        )
        variance = square - returned**2
        if variance > 0:
            readings.append(Reading(metrics.EXPLAINED_VARIANCE, 1.0 - error / variance))
    return readings


def _staleness(batch: MicroBatch) -> Tally:
    tally = tally_means(
        {
            metrics.STALENESS_MEAN: batch.staleness.float(),
            metrics.STALENESS_IN_BUFFER: batch.in_buffer.float(),
            metrics.STALENESS_IN_FLIGHT: (batch.staleness - batch.in_buffer).float(),
        },
        batch.mask,
    )
    for staleness in range(max(batch.largest_staleness, min(batch.max_staleness, LEAST_BARS)) + 1):
        tally |= tally_count(metrics.tokens_at(staleness), batch.mask & (batch.staleness == staleness))
    return tally


def _distances(batch: MicroBatch, logp: Tensor, entropy: Tensor, outcome: Outcome) -> Tally:
    """Distances between policies, over all tokens and by staleness."""
    gap = logp - batch.logp_behaviour
    ratio = guarded(gap).exp()
    behaviour_k3 = divergence(-gap, "k3")
    by_age = {
        metrics.CLIP_FRACTION: outcome.clipped.float(),
        metrics.RATIO_MEAN: ratio,
        metrics.BEHAVIOUR_K3: behaviour_k3,
        metrics.BEHAVIOUR_GAP: gap.abs(),
    }
    tally = tally_means(
        {
            **by_age,
            metrics.ENTROPY: entropy,
            metrics.RATIO_SQUARE_MEAN: ratio.square(),
        },
        batch.mask,
    )
    from_anchor = outcome.correction.weight * divergence(-outcome.log_ratio, "k3")
    tally |= tally_means({metrics.KL_ANCHOR_THETA: from_anchor}, _kept(batch, outcome))
    tally |= _mismatch(batch, logp, gap.abs(), behaviour_k3)
    for youngest, oldest in staleness_buckets(batch.max_staleness):
        aged = batch.mask & (batch.staleness >= youngest) & (batch.staleness <= oldest)
        tally |= tally_means({metrics.by_staleness(metric, youngest, oldest): value for metric, value in by_age.items()}, aged)
    return tally


def _mismatch(batch: MicroBatch, logp: Tensor, gap: Tensor, k3: Tensor) -> Tally:
    """The gap between engine and learner, on tokens that the version being trained sampled itself, and what tells its cause.

    Only there do both sides compute the same number, so that any gap comes from their arithmetic.
    """
    fresh = batch.mask & (batch.staleness == 0)
    tally = tally_means({metrics.LOGPROB_GAP: gap, metrics.MISMATCH_K3: k3}, fresh)
    oldest = batch.rows.maxima(batch.staleness.float(), torch.ones_like(fresh))
    tally |= tally_means({metrics.ONE_VERSION_GAP: gap}, fresh & (oldest[batch.rows.index] == 0))
    turns = batch.turns.index
    begins = torch.ones_like(fresh)
    begins[1:] = turns[1:] != turns[:-1]
    tally |= tally_means({metrics.TURN_BEGIN_GAP: gap}, fresh & begins)
    engine = batch.logp_behaviour
    compared = fresh & (logp < SURE) & (logp > UNLIKELY) & (engine < 0)
    x, y = (one.double() - torch.log(-torch.expm1(one.double())) for one in (logp, engine))
    return tally | tally_means(dict(zip(metrics.LOG_ODDS_SUMS, (x, y, x * x, x * y, y * y), strict=True)), compared)


def _kept(batch: MicroBatch, outcome: Outcome) -> Tensor:
    """bool [n], tokens that the correction has not left out."""
    return batch.mask & ~outcome.correction.masked & ~outcome.correction.rejected


def _left_out(batch: MicroBatch, outcome: Outcome) -> Tally:
    """Effects of the correction, and how many tokens were left out of the loss, by cause."""
    correction = outcome.correction
    masked, rejected = batch.mask & correction.masked & ~correction.rejected, batch.mask & correction.rejected
    tally = tally_means(
        {
            metrics.IMPORTANCE_WEIGHT: correction.weight * (~rejected).float(),
            metrics.TRUNCATED_FRACTION: correction.truncated.float(),
            metrics.MASKED_FRACTION: masked.float(),
            metrics.REJECTED_FRACTION: rejected.float(),
        },
        batch.mask,
    )
    tally |= tally_count(metrics.TOKENS, batch.mask) | tally_count(metrics.TOKENS_MASKED_STALE, ~batch.mask)
    return tally | tally_count(metrics.TOKENS_MASKED_WEIGHT, masked) | tally_count(metrics.TOKENS_REJECTED, rejected)
