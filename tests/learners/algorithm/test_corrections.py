"""The correction alone; with every loss it is tested in test_losses."""

import math

import pytest
from loss_samples import Row, Token, decoupled, pack_tokens

from asyncrl.core.recipe.correction import (
    MaskBoundConfig,
    RejectDivergenceConfig,
    RejectOffPolicySequenceConfig,
    RejectRatioConfig,
    TruncateBoundConfig,
)
from asyncrl.learners.algorithm.corrections import correct


def token(log_ratio, turn=0, mask=True, staleness=0):
    """A token whose proximal probability is ``exp(log_ratio)`` times its behaviour probability."""
    return Token(-1.0, -1.0, -1.0 - log_ratio, mask, staleness, turn)


def corrected(rows, **config):
    theta, proximal, tokens = pack_tokens([Row(tuple(row), 1.0) for row in rows])
    return correct(theta, proximal, tokens, decoupled(**config))


LOOSE = TruncateBoundConfig(upper=1e9)
ROWS = [[token(0.2), token(0.6), token(5.0, mask=False), token(1.0, turn=1)], [token(-0.4)]]


@pytest.mark.parametrize(
    ("weight", "logs"),
    [
        ("none", [0, 0, 0, 0, 0]),
        ("token", [0.2, 0.6, 0, 1.0, -0.4]),
        ("segment", [0.4, 0.4, 0.4, 1.0, -0.4]),
        ("sequence", [0.6, 0.6, 0.6, 0.6, -0.4]),
    ],
)
def test_weights_are_geometric_means_over_what_may_enter_the_loss(weight, logs):
    assert corrected(ROWS, weight=weight, bound=LOOSE).weight.log().tolist() == pytest.approx(logs, abs=1e-6)


def test_a_bound_truncates_or_masks():
    truncated = corrected(ROWS, bound=TruncateBoundConfig(upper=1.5))
    assert truncated.weight.max() == 1.5
    assert truncated.truncated.tolist() == [False, True, False, True, False]
    assert not truncated.masked.any()
    masked = corrected(ROWS, bound=MaskBoundConfig(lower=0.7, upper=1.5))
    assert masked.masked.tolist() == [False, True, False, True, True]
    assert masked.weight.tolist() == pytest.approx([math.exp(0.2), 0, 1, 0, 0])


def test_a_weight_of_a_long_row_does_not_grow_with_its_length():
    long = corrected([[token(0.5) for _ in range(5000)]], weight="sequence", bound=LOOSE)
    assert long.weight[0].item() == pytest.approx(math.exp(0.5), rel=1e-4)


def test_a_criterion_on_a_sum_over_a_long_row_does_not_overflow():
    rows = [[token(0.5) for _ in range(5000)], [token(0.0) for _ in range(5000)]]
    result = corrected(rows, reject=(RejectRatioConfig(reduce="sum", lower=0.1, upper=10.0),))
    assert result.rejected.tolist() == [True] * 5000 + [False] * 5000


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [
        (RejectRatioConfig(level="token", upper=1.5), [0, 1, 0, 1, 0]),
        (RejectRatioConfig(level="token", lower=0.7, upper=9.0), [0, 0, 0, 0, 1]),
        (RejectRatioConfig(level="segment", upper=1.5), [0, 0, 0, 1, 0]),
        (RejectRatioConfig(level="sequence", upper=1.5), [1, 1, 0, 1, 0]),
        (RejectRatioConfig(level="sequence", reduce="max", upper=2.5), [1, 1, 0, 1, 0]),
        (RejectRatioConfig(level="sequence", reduce="max", upper=3.0), [0, 0, 0, 0, 0]),
        (RejectDivergenceConfig(estimator="k1", level="token", upper=0.3), [0, 0, 0, 0, 1]),
        (RejectDivergenceConfig(estimator="k2", level="token", upper=0.17), [0, 1, 0, 1, 0]),
        (RejectDivergenceConfig(estimator="k3", level="segment", reduce="max", upper=0.2), [1, 1, 0, 1, 0]),
        (RejectDivergenceConfig(estimator="k3", level="sequence", reduce="sum", upper=0.95), [1, 1, 0, 1, 0]),
        (RejectDivergenceConfig(estimator="k3", level="sequence", reduce="sum", upper=0.97), [0, 0, 0, 0, 0]),
    ],
)
def test_criteria_name_tokens_turns_or_rows(criterion, expected):
    assert corrected(ROWS, reject=(criterion,)).rejected.int().tolist() == expected


def test_losing_rows_far_from_the_policy_are_left_out():
    """DeepSeek-V3.2's mask: a negative advantage, and sampled with more probability than the policy now gives, on the mean."""
    far = (Token(-2.0, -1.0, -1.0, True, 0, 0), Token(-1.5, -1.0, -1.0, True, 0, 1), Token(-9.0, -1.0, -1.0, False, 0, 1))
    near = (Token(-1.7, -3.0, -1.0, True, 0, 0),)
    rows = [Row(far, -1.0), Row(far, 1.0), Row(near, -1.0), Row(far, 0.0)]
    theta, proximal, tokens = pack_tokens(rows)
    # 1 and 0.5 nats of the current policy, whatever it was before the step: 0.75 on the mean; 0.7 of the row that is near.
    for upper, expected in ((0.74, [1, 1, 0] + [0] * 7), (0.76, [0] * 10)):
        result = correct(theta, proximal, tokens, decoupled(reject=(RejectOffPolicySequenceConfig(upper=upper),)))
        assert result.rejected.int().tolist() == expected


def test_several_criteria_each_reject():
    both = (RejectRatioConfig(level="token", upper=2.5), RejectDivergenceConfig(estimator="k1", level="token", upper=0.3))
    assert corrected(ROWS, reject=both).rejected.int().tolist() == [0, 0, 0, 1, 1]


def test_the_log_linear_anchor_lies_a_version_back_and_never_beyond_the_policy_that_sampled():
    rows = [[token(0.8, staleness=age) for age in (0, 1, 2, 4)]]
    result = corrected(rows, anchor="proximal_log_linear", bound=LOOSE)
    # A fresh token, and one a version old, are anchored at the behaviour policy.
    assert result.logp_anchor.tolist() == pytest.approx([-1.8, -1.8, -1.4, -1.2])
    assert result.weight.log().tolist() == pytest.approx([0.0, 0.0, 0.4, 0.6], abs=1e-6)


def test_the_behaviour_anchor_needs_no_weight():
    result = corrected(ROWS, anchor="behaviour", weight="none")
    assert result.logp_anchor.tolist() == pytest.approx([-1.2, -1.6, -6.0, -2.0, -0.6])
    assert result.weight.tolist() == [1.0] * 5


@pytest.mark.parametrize("level", ["token", "segment", "sequence"])
def test_rows_out_of_the_loss_and_no_rows_are_left_alone(level):
    criteria = (RejectRatioConfig(level=level, reduce="max"), RejectDivergenceConfig(level=level, reduce="max"))
    stale = corrected([[token(9.0, mask=False)] * 2, [token(0.0)]], weight=level, reject=criteria)
    assert stale.weight.tolist() == [1.0] * 3
    assert not stale.rejected.any()
    assert len(corrected([], weight=level, reject=criteria).weight) == 0


def test_nothing_of_it_has_a_gradient():
    theta, proximal, tokens = pack_tokens([Row((token(0.3, staleness=2),), 1.0)])
    result = correct(theta.requires_grad_(), proximal.requires_grad_(), tokens, decoupled(anchor="proximal_log_linear"))
    assert not result.weight.requires_grad
    assert not result.logp_anchor.requires_grad
