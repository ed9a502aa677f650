"""The divergence from the reference, estimated from tokens that another policy sampled, against sums over a whole vocabulary.

Each token of the vocabulary is a row of its own, whose share is the probability with which the behaviour policy samples it. So a
sum over the rows is an expectation, and nothing is random.
"""

import math

import msgspec
import pytest
import torch
from learner_samples import packed_batch
from loss_samples import Row, Token, decoupled, decoupled_ppo, pack_tokens

from asyncrl.core.recipe.algorithm import KlInLossConfig, NoKlConfig
from asyncrl.core.recipe.correction import MaskBoundConfig, TruncateBoundConfig
from asyncrl.learners.algorithm.losses import policy_loss
from asyncrl.learners.batches.observations import observe, readings_of

FREE = TruncateBoundConfig(upper=1e4)
"""A bound that no ratio reaches."""
EXACT = {
    "behaviour": decoupled(anchor="behaviour", weight="none", bound=FREE),
    "proximal_recomputed": decoupled(bound=FREE),
    "proximal_log_linear": decoupled(anchor="proximal_log_linear", bound=FREE),
}


def policies():
    """Logits of the policy being optimised, and log-probabilities of the proximal, behaviour and reference policies."""
    logits = torch.tensor([1.2, -0.4, 0.3, -1.5, 0.1], dtype=torch.float64, requires_grad=True)
    others = torch.tensor(
        [[1.0, -0.2, 0.3, -1.0, 0.0], [-0.5, 0.6, 0.2, -0.3, 0.9], [0.4, 0.4, -0.9, 0.2, 0.8]], dtype=torch.float64
    )
    return logits, *others.log_softmax(-1)


def whole_vocabulary(correction, kl, coefficient):
    """Loss and outcome of one token of each kind, with the loss's gradient with respect to the logits."""
    logits, proximal, behaviour, reference = policies()
    logp = logits.log_softmax(0)
    numbers = zip(*(each.tolist() for each in (logp, proximal, behaviour)), strict=True)
    rows = [Row((Token(*each, True, 2, 0),), 1.0, math.exp(each[2])) for each in numbers]
    _, packed_proximal, tokens = pack_tokens(rows)
    tokens = msgspec.structs.replace(tokens, logp_reference=reference.float())
    config = decoupled_ppo(correction=correction, kl=kl)
    outcome = policy_loss(logp, packed_proximal, torch.zeros(5), tokens, config, 1.0, coefficient)
    (gradient,) = torch.autograd.grad(outcome.loss, logits)
    return outcome, gradient, tokens


def of_divergence(correction, kl):
    """The divergence's part of the loss, and of the gradient."""
    (with_it, its_gradient, _), (without, gradient, _) = (
        whole_vocabulary(correction, KlInLossConfig(**kl), 0.5),
        whole_vocabulary(correction, NoKlConfig(), 0.0),
    )
    return (with_it.loss - without.loss).item() / 0.5, (its_gradient - gradient) / 0.5


@pytest.mark.parametrize("estimator", ["k1", "k3"])
@pytest.mark.parametrize("anchor", EXACT)
def test_the_term_is_the_divergence_of_the_policy_being_optimised_and_so_is_its_gradient(anchor, estimator):
    logits, _, _, reference = policies()
    logp = logits.log_softmax(0)
    exact = (logp.exp() * (logp - reference)).sum()
    (slope,) = torch.autograd.grad(exact, logits)
    value, gradient = of_divergence(EXACT[anchor], {"estimator": estimator})
    assert value == pytest.approx(exact.item(), rel=1e-5)
    assert gradient.tolist() == pytest.approx(slope.tolist(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("upper", [1.5, 2.0])
def test_the_ratio_is_held_at_the_bound_of_the_weights(upper):
    logits, _, behaviour, reference = policies()
    logp = logits.detach().log_softmax(0)
    ratios = (logp - behaviour).exp()
    assert (ratios > upper).any()
    expected = (behaviour.exp() * ratios.clamp(max=upper) * ((reference - logp).exp() - 1 - (reference - logp))).sum()
    correction = decoupled(anchor="behaviour", weight="none", bound=TruncateBoundConfig(upper=upper))
    assert of_divergence(correction, {})[0] == pytest.approx(expected.item(), rel=1e-5)


def measured_batch():
    """A micro-batch, log-probabilities under a policy that did not sample it, and those under a reference."""
    batch = packed_batch()
    place = torch.arange(len(batch.mask), dtype=torch.float32)
    logp = batch.logp_behaviour + 0.5 * torch.sin(place)
    reference = logp + 0.7 * torch.cos(3.0 * place)
    return msgspec.structs.replace(batch, logp_reference=reference), logp, reference


def metric(batch, logp_theta, logp_proximal, correction):
    nothing = torch.zeros_like(logp_theta)
    outcome = policy_loss(logp_theta, logp_proximal, nothing, batch, decoupled_ppo(correction=correction), 1.0)
    tally = observe(batch, logp_proximal, nothing, outcome, correction)
    return {reading.metric.name: reading.value for reading in readings_of(tally)}


@pytest.mark.parametrize("anchor", EXACT)
def test_the_metric_is_weighed_like_the_term(anchor):
    batch, logp, reference = measured_batch()
    seen = metric(batch, logp, logp, EXACT[anchor])
    weights = (logp - batch.logp_behaviour).double().exp()
    difference = (logp - reference).double()
    expected = (weights * ((-difference).exp() - 1 + difference))[batch.mask].mean()
    assert seen["kl/reference_k3"] == pytest.approx(expected.item(), rel=1e-4)


def test_the_metric_is_of_the_tokens_that_the_correction_keeps():
    batch, logp, reference = measured_batch()
    seen = metric(batch, logp, logp, decoupled(bound=MaskBoundConfig(lower=0.9, upper=1.3)))
    weights, difference = (logp - batch.logp_behaviour).double().exp(), (logp - reference).double()
    kept = batch.mask & (weights >= 0.9) & (weights <= 1.3)
    assert 0 < kept.sum() < batch.mask.sum()
    expected = (weights * ((-difference).exp() - 1 + difference))[kept].mean()
    assert seen["kl/reference_k3"] == pytest.approx(expected.item(), rel=1e-4)


def test_how_far_the_optimizer_steps_have_moved_is_an_expectation_under_the_anchor():
    batch, proximal, _ = measured_batch()
    theta = proximal + 0.2 * torch.sin(2.0 * torch.arange(len(proximal)))
    seen = metric(batch, theta, proximal, EXACT["proximal_recomputed"])
    weights, moved = (proximal - batch.logp_behaviour).double().exp(), (theta - proximal).double()
    expected = (weights * (moved.exp() - 1 - moved))[batch.mask].mean()
    assert seen["loss/kl_anchor_theta"] == pytest.approx(expected.item(), rel=1e-4)
