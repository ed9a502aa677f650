"""However a batch is divided, its parts add up to its loss and its gradient, whatever the aggregation, loss and correction."""

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_samples import decoupled, decoupled_ppo, pack_tokens, rows_of_tokens

from asyncrl.core.recipe.algorithm import (
    ConstantAggregationConfig,
    SequenceMeanTokenMeanConfig,
    SequenceMeanTokenSumConfig,
    TokenMeanConfig,
)
from asyncrl.core.recipe.correction import MaskBoundConfig, RejectDivergenceConfig
from asyncrl.core.recipe.loss import GmpoLossConfig, GspoLossConfig, PpoClipLossConfig, ReinforceLossConfig
from asyncrl.learners.algorithm.aggregation import Sequences, denominator, shares
from asyncrl.learners.algorithm.losses import policy_loss

KINDS = [TokenMeanConfig(), SequenceMeanTokenSumConfig(), SequenceMeanTokenMeanConfig(), ConstantAggregationConfig(tokens=7)]
LOSSES = [PpoClipLossConfig(), GspoLossConfig(), GmpoLossConfig(), ReinforceLossConfig()]
CORRECTIONS = [
    decoupled(),
    decoupled(
        weight="segment", bound=MaskBoundConfig(), reject=(RejectDivergenceConfig(level="sequence", reduce="max", upper=2.0),)
    ),
]


def each_alone(tokens, weights=None):
    """Rows of so many tokens in the loss, each of which is a sequence."""
    weights = torch.ones(len(tokens), dtype=torch.float64) if weights is None else weights
    return Sequences(torch.tensor(tokens), weights, torch.arange(len(tokens)))


def counts(rows):
    return each_alone([sum(token.mask for token in row.tokens) for row in rows])


def shared(rows, kind):
    return [
        msgspec.structs.replace(row, share=share) for row, share in zip(rows, shares(counts(rows), kind).tolist(), strict=True)
    ]


def loss_and_gradient(rows, config, divisor):
    theta, proximal, tokens = pack_tokens(rows)
    theta = theta.requires_grad_()
    outcome = policy_loss(theta, proximal, torch.zeros_like(theta), tokens, config, divisor)
    outcome.loss.backward()
    return outcome.loss.item(), theta.grad.split([len(row.tokens) for row in rows])


@settings(max_examples=60)
@given(
    rows_of_tokens(min_rows=2, max_rows=6),
    st.sampled_from(KINDS),
    st.sampled_from(LOSSES),
    st.sampled_from(CORRECTIONS),
    st.randoms(use_true_random=False),
)
def test_parts_of_a_batch_add_up_to_it(rows, kind, loss, correction, random):
    config = decoupled_ppo(loss=loss, aggregation=kind, correction=correction)
    divisor = max(1, denominator(counts(rows), kind))
    rows = shared(rows, kind)
    whole, whole_gradient = loss_and_gradient(rows, config, divisor)
    # Rows into any micro-batches, in any order; some empty.
    places = [random.randrange(4) for _ in rows]
    total, gradients = 0.0, {}
    for part in range(4):
        chosen = [number for number, place in enumerate(places) if place == part]
        random.shuffle(chosen)
        value, of_rows = loss_and_gradient([rows[number] for number in chosen], config, divisor)
        total += value
        gradients |= dict(zip(chosen, of_rows, strict=True))
    assert total == pytest.approx(whole, rel=1e-5, abs=1e-5)
    for number, gradient in enumerate(whole_gradient):
        torch.testing.assert_close(gradients[number], gradient, rtol=1e-5, atol=1e-6)


@given(rows_of_tokens(max_rows=6))
def test_each_kind_is_what_its_name_says(rows):
    """The loss is ``-A * logp``, without any correction."""
    terms = [np.array([-row.advantage * token.theta for token in row.tokens if token.mask]) for row in rows]
    terms = [one for one in terms if len(one)]
    if not terms:
        assert [denominator(counts(rows), kind) for kind in KINDS] == [0] * 4
        return
    expected = {
        TokenMeanConfig(): np.concatenate(terms).mean(),
        SequenceMeanTokenSumConfig(): np.mean([one.sum() for one in terms]),
        SequenceMeanTokenMeanConfig(): np.mean([one.mean() for one in terms]),
        ConstantAggregationConfig(tokens=7): np.mean([one.sum() / 7 for one in terms]),
    }
    for kind, value in expected.items():
        config = decoupled_ppo(loss=ReinforceLossConfig(), aggregation=kind, correction=decoupled(weight="none"))
        loss, _ = loss_and_gradient(shared(rows, kind), config, denominator(counts(rows), kind))
        assert loss == pytest.approx(value, rel=1e-4, abs=1e-5)


def test_rejected_tokens_stay_in_the_denominator():
    assert denominator(each_alone([3, 0, 2]), TokenMeanConfig()) == 5
    assert denominator(each_alone([3, 0, 2]), SequenceMeanTokenMeanConfig()) == 2
    assert shares(each_alone([3, 0, 2]), SequenceMeanTokenMeanConfig()).tolist() == pytest.approx([1 / 3, 1, 1 / 2])


def test_a_row_counts_below_the_line_as_much_as_above_it():
    weighted = each_alone([3, 0, 2], torch.tensor([0.5, 7.0, 2.0], dtype=torch.float64))
    assert denominator(weighted, TokenMeanConfig()) == 0.5 * 3 + 2.0 * 2
    assert denominator(weighted, SequenceMeanTokenMeanConfig()) == 0.5 + 2.0
