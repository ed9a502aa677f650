"""The loss and its metrics against formulas written token by token in Python's own float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.recipe.schema import Algorithm, NoCorrection, PpoClipLoss, TruncatedImportance
from learners import metrics
from learners.losses import policy_loss

TOKEN = st.tuples(st.floats(-8, -0.01), st.floats(-8, -0.01), st.floats(-8, -0.01), st.floats(-3, 3), st.booleans())
ALGORITHM = Algorithm(loss=PpoClipLoss(clip_low=0.2, clip_high=0.3), correction=TruncatedImportance(bound=2.0))


def tensors(tokens, dtype=torch.float32):
    theta, proximal, behaviour, advantages, mask = zip(*tokens, strict=True)
    return [torch.tensor(values, dtype=dtype) for values in (theta, proximal, behaviour, advantages)] + [torch.tensor(mask)]


def term(theta, proximal, behaviour, advantage, bound):
    ratio = math.exp(theta - proximal)
    weight = 1.0 if bound is None else min(math.exp(proximal - behaviour), bound)
    return -weight * min(ratio * advantage, min(max(ratio, 0.8), 1.3) * advantage)


@settings(deadline=None)
@given(st.lists(TOKEN, min_size=1, max_size=12), st.sampled_from([None, 1.0, 2.0, 5.0]))
def test_loss_is_the_sum_of_its_terms(tokens, bound):
    correction = NoCorrection() if bound is None else TruncatedImportance(bound=bound)
    algorithm = Algorithm(loss=ALGORITHM.loss, correction=correction)
    loss, tally = policy_loss(*tensors(tokens), algorithm, 7)
    expected = sum(term(*token[:4], bound) for token in tokens if token[4])
    assert loss.item() == pytest.approx(expected / 7, rel=1e-4, abs=1e-4)
    total, weight = tally[metrics.POLICY_LOSS].tolist()
    assert total == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert weight == sum(token[4] for token in tokens)


@settings(deadline=None)
@given(st.lists(TOKEN, min_size=2, max_size=12), st.data())
def test_parts_add_up_to_the_whole(tokens, data):
    cut = data.draw(st.integers(1, len(tokens) - 1))
    whole, whole_tally = policy_loss(*tensors(tokens), ALGORITHM, 20)
    parts = [policy_loss(*tensors(part), ALGORITHM, 20) for part in (tokens[:cut], tokens[cut:])]
    assert sum(loss.item() for loss, _ in parts) == pytest.approx(whole.item(), rel=1e-5, abs=1e-6)
    for metric, sums in whole_tally.items():
        assert (parts[0][1][metric] + parts[1][1][metric]).tolist() == pytest.approx(sums.tolist(), rel=1e-5, abs=1e-6)


def gradient(theta, advantage, proximal=-1.0, behaviour=-1.0):
    logp = torch.tensor([theta], requires_grad=True)
    token = [torch.tensor([proximal]), torch.tensor([behaviour]), torch.tensor([advantage]), torch.tensor([True])]
    policy_loss(logp, *token, ALGORITHM, 1)[0].backward()
    return logp.grad.item()


def test_gradient_vanishes_where_the_clip_says_so_and_nowhere_else():
    high, low, inside = -1.0 + math.log(1.5), -1.0 + math.log(0.5), -1.0 + math.log(1.25)
    assert gradient(high, advantage=1.0) == 0.0
    assert gradient(high, advantage=-1.0) == pytest.approx(1.5)
    assert gradient(low, advantage=-1.0) == 0.0
    assert gradient(low, advantage=1.0) == pytest.approx(-0.5)
    # Between 1 + clip_low and 1 + clip_high: the range is asymmetric.
    assert gradient(inside, advantage=1.0) == pytest.approx(-1.25)


def test_importance_weight_scales_the_gradient_and_is_truncated():
    on_policy = gradient(-1.0, advantage=1.0)
    assert gradient(-1.0, 1.0, behaviour=-1.0 - math.log(1.5)) == pytest.approx(1.5 * on_policy)
    assert gradient(-1.0, 1.0, behaviour=-6.0) == pytest.approx(2.0 * on_policy)


def test_masked_tokens_change_nothing_whatever_stands_there():
    tokens = [(-1.0, -1.2, -0.9, 1.0, True), (-2.0, -1.9, -2.2, -1.0, True)]
    clean, clean_tally = policy_loss(*tensors(tokens), ALGORITHM, 2)
    logp, *rest = tensors([*tokens, (math.nan, -1.0, -math.inf, 3.0, False)])
    logp.requires_grad_()
    loss, tally = policy_loss(logp, *rest, ALGORITHM, 2)
    loss.backward()
    assert loss.item() == clean.item()
    assert logp.grad[2] == 0.0
    assert torch.isfinite(logp.grad).all()
    assert all(torch.equal(tally[metric], sums) for metric, sums in clean_tally.items())


def test_on_policy_every_ratio_is_one():
    logp = torch.tensor([-0.5, -3.0, -1.0])
    _, tally = policy_loss(logp, logp, logp, torch.ones(3), torch.ones(3, dtype=torch.bool), ALGORITHM, 3)
    mean = {metric: (sums[0] / sums[1]).item() for metric, sums in tally.items()}
    assert mean[metrics.POLICY_LOSS] == -1.0
    assert mean[metrics.IMPORTANCE_WEIGHT] == mean[metrics.RATIO_MEAN] == mean[metrics.RATIO_SQUARE_MEAN] == 1.0
    zero = (metrics.CLIP_FRACTION, metrics.TRUNCATED_FRACTION, metrics.KL_PROXIMAL_THETA, metrics.BEHAVIOUR_K3)
    assert [mean[metric] for metric in zero] == [0.0] * 4


def test_one_hopeless_token_keeps_the_diagnostics_finite():
    _, tally = policy_loss(*tensors([(-0.1, -0.1, -400.0, 1.0, True)]), ALGORITHM, 1)
    assert all(torch.isfinite(sums).all() for sums in tally.values())
