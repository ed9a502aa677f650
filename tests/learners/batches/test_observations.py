"""What a step reports, against counts over the tokens."""

import math

import msgspec
import numpy as np
import pytest
import torch
from learner_samples import packed_batch
from loss_samples import decoupled, decoupled_ppo

from asyncrl.core.measures.gap_sums import GapSums
from asyncrl.core.measures.metrics import Reduction
from asyncrl.core.recipe.correction import MaskBoundConfig, RejectRatioConfig
from asyncrl.learners.algorithm.losses import policy_loss
from asyncrl.learners.batches.metric_tallies import add_to
from asyncrl.learners.batches.observations import observe, readings_of, staleness_buckets
from asyncrl.learners.metrics import gap_evidence


def tally_of(batch, logp, correction=None):
    correction = correction or decoupled()
    outcome = policy_loss(logp, logp, torch.ones_like(logp), batch, decoupled_ppo(correction=correction), 100)
    return observe(batch, logp, torch.ones_like(logp), outcome, correction)


def readings(tally):
    return {reading.metric.name: reading.value for reading in readings_of(tally)}


def test_on_policy_every_ratio_is_one_and_every_distance_zero():
    batch = packed_batch()
    seen = readings(tally_of(batch, batch.logp_behaviour))
    ones = ("correction/importance_weight_mean", "correction/ratio_mean", "correction/ess", "correction/ratio_mean_at_0")
    assert [seen[name] for name in ones] == [1.0] * 4
    zeros = ("loss/clip_fraction", "correction/truncated_fraction", "kl/behaviour_k3", "kl/behaviour_gap_mean_abs", "mismatch/k3")
    assert [seen[name] for name in zeros] == [0.0] * 5
    assert seen["loss/policy"] == pytest.approx(-batch.mask.sum().item() / 100)


def test_ratio_and_divergence_are_told_by_staleness():
    batch = packed_batch()
    shift = torch.where(batch.staleness == 0, math.log(1.5), math.log(3.0))
    seen = readings(tally_of(batch, batch.logp_behaviour + shift))
    assert seen["correction/ratio_mean_at_0"] == pytest.approx(1.5, rel=1e-5)
    assert seen["correction/ratio_mean_at_1"] == pytest.approx(3.0, rel=1e-5)
    assert seen["kl/behaviour_k3_at_1"] == pytest.approx(2.0 - math.log(3.0), rel=1e-5)
    assert seen["kl/behaviour_k3"] < seen["kl/behaviour_k3_at_1"]
    assert seen["mismatch/logprob_gap_mean_abs"] == pytest.approx(math.log(1.5), rel=1e-5)
    old = (batch.mask & (batch.staleness == 1)).sum().item()
    assert seen["correction/truncated_fraction"] == pytest.approx(old / batch.mask.sum().item())


def test_the_histogram_has_the_ages_that_there_are_however_large_the_bound():
    batch = packed_batch()
    far = msgspec.structs.replace(batch, max_staleness=10**9, largest_staleness=40, staleness=40 * batch.staleness)
    seen = readings(tally_of(far, batch.logp_behaviour))
    bars = {name.rpartition("_")[2]: value for name, value in seen.items() if name.startswith("staleness/tokens_at_")}
    assert list(bars) == [str(age) for age in range(41)]
    assert (bars["0"], bars["40"]) == tuple((far.mask & (far.staleness == age)).sum() for age in (0, 40))
    assert seen["staleness/max"] == 40.0
    assert seen["kl/behaviour_k3_at_33_to_64"] == 0.0


def test_what_tells_the_cause_of_a_gap_is_what_sums_over_the_same_tokens_say():
    batch = packed_batch()
    logp = (batch.logp_behaviour * 1.3 - 0.05 * (torch.arange(len(batch.mask)) % 4)).clamp(max=-1e-3)
    seen = gap_evidence(readings(tally_of(batch, logp)))
    rows, turns, sums = batch.rows.index.numpy(), batch.turns.index.numpy(), GapSums()
    staleness, chosen = batch.staleness.numpy(), batch.mask.numpy()
    oldest = np.array([staleness[rows == row].max() for row in range(batch.rows.count)])
    begins = np.diff(turns, prepend=-1) != 0
    columns = batch.logp_behaviour.double().numpy(), logp.double().numpy(), staleness, oldest[rows] == 0, begins
    sums.add(*(column[chosen] for column in columns))
    expected = msgspec.structs.asdict(sums.evidence())
    assert None not in expected.values()
    assert len(set(expected.values())) == len(expected)
    assert msgspec.structs.asdict(seen) == pytest.approx(expected, rel=1e-5)


def test_tokens_left_out_are_counted_by_cause():
    batch = packed_batch()
    place = torch.arange(len(batch.mask))
    logp = batch.logp_behaviour + torch.where(place % 3 == 0, 2.0, torch.where(place % 3 == 1, -4.0, 0.0))
    correction = decoupled(
        bound=MaskBoundConfig(lower=0.5, upper=5.0), reject=(RejectRatioConfig(level="token", lower=0.1, upper=100.0),)
    )
    seen = readings(tally_of(batch, logp, correction))
    stale = ~batch.mask
    assert seen["learner/tokens_masked_stale"] == stale.sum().item() > 0
    assert seen["learner/tokens_masked_weight"] == (batch.mask & (place % 3 == 0)).sum().item() > 0
    # Out of bounds too, but counted once: a criterion has named them.
    assert seen["learner/tokens_rejected"] == (batch.mask & (place % 3 == 1)).sum().item() > 0
    assert seen["learner/tokens"] == batch.mask.sum().item()
    kept = seen["learner/tokens"] - seen["learner/tokens_masked_weight"] - seen["learner/tokens_rejected"]
    assert seen["correction/importance_weight_mean"] == pytest.approx(kept / seen["learner/tokens"])


def test_tallies_of_parts_add_up_to_the_whole():
    whole = tally_of(packed_batch(), packed_batch().logp_behaviour + 0.3)
    total = {}
    for take in (slice(0, 5), slice(5, 5), slice(5, None)):
        part = packed_batch(take)
        add_to(total, tally_of(part, part.logp_behaviour + 0.3))
    assert total.keys() == whole.keys()
    for metric, sums in whole.items():
        # Only means have a weight.
        parts = slice(None) if metric.reduction is Reduction.MEAN else slice(0, 1)
        assert total[metric][parts].tolist() == pytest.approx(sums[parts].tolist(), rel=1e-5, abs=1e-6)


def test_one_hopeless_token_keeps_the_readings_finite():
    batch = packed_batch()
    tally = tally_of(batch, batch.logp_behaviour + torch.where(torch.arange(len(batch.mask)) == 3, 400.0, 0.0))
    assert all(math.isfinite(value) for value in readings(tally).values())


@pytest.mark.parametrize(
    ("largest", "buckets"),
    [(0, [(0, 0)]), (2, [(0, 0), (1, 1), (2, 2)]), (6, [(0, 0), (1, 1), (2, 2), (3, 4), (5, 6)])],
)
def test_buckets_double(largest, buckets):
    assert list(staleness_buckets(largest)) == buckets
