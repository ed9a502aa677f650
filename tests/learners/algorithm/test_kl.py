import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.learners.algorithm.kl import adapted_coefficient, divergence, kl_in_reward, straight_through

FORMULAS = {"k1": lambda d: d, "abs": abs, "k2": lambda d: d * d / 2, "k3": lambda d: math.exp(-d) - 1 + d}
ESTIMATORS = list(FORMULAS)


@given(st.sampled_from(ESTIMATORS), st.lists(st.floats(-5, 5), max_size=6))
def test_estimators(estimator, differences):
    result = divergence(torch.tensor(differences, dtype=torch.float64), estimator).tolist()
    assert result == pytest.approx([FORMULAS[estimator](d) for d in differences], rel=1e-9, abs=1e-12)


def policies():
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    return logits, logits.log_softmax(0), torch.tensor([0.0, 0.5, -0.2, 1.0], dtype=torch.float64).log_softmax(0)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(estimator):
    _, p, q = policies()
    mean = (p.exp() * divergence(p - q, estimator)).sum()
    assert mean.item() == pytest.approx((p.exp() * (p - q)).sum().item())


def test_k3_is_not_capped():
    """A token that the reference prefers e^9-fold carries most of the mean, and has its gradient back."""
    p = torch.tensor([1.0 - 1e-4, 1e-4], dtype=torch.float64).log()
    q = torch.tensor([1.0 - 1e-4 * math.exp(9), 1e-4 * math.exp(9)], dtype=torch.float64).log()
    of_tokens = divergence(p - q, "k3")
    assert (p.exp() * of_tokens).sum().item() == pytest.approx((p.exp() * (p - q)).sum().item())
    assert of_tokens[1] > 10
    logp = p.clone().requires_grad_()
    divergence(logp - q, "k3").sum().backward()
    assert logp.grad[1].item() == pytest.approx(1 - math.exp(9))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_straight_through_keeps_the_value_and_has_the_gradient_of_the_divergence(estimator):
    logits, p, q = policies()
    (exact,) = torch.autograd.grad((p.exp() * (p - q)).sum(), logits, retain_graph=True)
    estimate = straight_through(p - q, estimator)
    assert estimate.tolist() == pytest.approx(divergence(p - q, estimator).tolist())
    (sampled,) = torch.autograd.grad((p.exp().detach() * estimate).sum(), logits)
    assert sampled.tolist() == pytest.approx(exact.tolist())


def test_k1_as_a_loss_would_have_no_gradient_to_follow():
    logits, p, q = policies()
    (sampled,) = torch.autograd.grad((p.exp().detach() * divergence(p - q, "k1")).sum(), logits)
    assert sampled.tolist() == pytest.approx([0.0] * 4, abs=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("distance", [-300.0, -25.0, 25.0, 300.0])
def test_however_far_a_token_is_its_gradient_leads_back(estimator, distance):
    """The gradient of the divergence is ``d`` itself; that of ``k3``, where ``exp(-d)`` would overflow, stays as it is at -20."""
    difference = torch.tensor(distance, requires_grad=True)
    (slope,) = torch.autograd.grad(straight_through(difference, estimator), difference)
    assert slope.item() == pytest.approx(distance)
    own = {"k1": 1.0, "abs": math.copysign(1.0, distance), "k2": distance, "k3": 1.0 - math.exp(-max(distance, -20.0))}
    (slope,) = torch.autograd.grad(divergence(difference, estimator), difference)
    assert slope.item() == pytest.approx(own[estimator])


def test_beyond_the_guard_k3_is_a_straight_line():
    at, below = divergence(torch.tensor([-20.0, -23.0], dtype=torch.float64), "k3").tolist()
    assert at == pytest.approx(math.exp(20.0) - 1 - 20)
    assert below == pytest.approx(at + 3 * (math.exp(20.0) - 1))


def test_hopeless_tokens_stay_finite():
    assert torch.isfinite(divergence(torch.tensor([-400.0, 400.0]), "k3")).all()


def test_in_reward_every_token_pays_and_each_turns_last_one_earns():
    rewards = kl_in_reward(torch.tensor([1, 3]), torch.tensor([2.0, -1.0]), torch.tensor([0.1, 0.2, -0.3, 0.0]), 0.5)
    assert rewards.tolist() == pytest.approx([-0.05, 1.9, 0.15, -1.0])


def test_the_coefficient_moves_towards_its_target_and_no_faster_than_allowed():
    assert adapted_coefficient(0.1, observed=6.0, target=6.0, horizon=10) == 0.1
    assert adapted_coefficient(0.1, observed=6.6, target=6.0, horizon=10) == pytest.approx(0.1 * 1.01)
    assert adapted_coefficient(0.1, observed=600.0, target=6.0, horizon=10) == pytest.approx(0.1 * 1.02)
    assert adapted_coefficient(0.1, observed=0.0, target=6.0, horizon=10) == pytest.approx(0.1 * 0.98)
