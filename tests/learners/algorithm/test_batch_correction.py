"""What the correction asks of the whole batch: against Python's own float64, and however ranks divide the tokens."""

import math

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_samples import Row, Token, decoupled, pack_tokens, rows_of_tokens
from rank_threads import on_ranks

from asyncrl.core.recipe.correction import NormalizedBoundConfig, RejectSecondMomentConfig
from asyncrl.learners.algorithm.batch_correction import mean_weight, second_moment_outliers
from asyncrl.learners.algorithm.corrections import correct

# Squares and their sums are exact in these, and no mean of up to 12 of them is a bound of those below.
LOG_RATIOS = st.lists(st.tuples(st.integers(-16, 16).map(lambda n: n / 8), st.booleans()), min_size=1, max_size=12)
UPPER = st.integers(0, 128).map(lambda n: n / 64 + 0.001)


def outliers(log_ratios, masks, upper, cuts=()):
    columns = [torch.tensor(column).tensor_split(cuts) for column in (log_ratios, masks)]
    parts = list(zip(*columns, strict=True))
    return torch.cat(
        on_ranks(lambda part, _, gather: second_moment_outliers(part[0].double(), part[1], upper, gather), parts)
    ).tolist()


@given(LOG_RATIOS, UPPER, st.sets(st.integers(0, 12)))
def test_a_second_moment_leaves_out_the_fewest_of_the_largest(tokens, upper, cuts):
    log_ratios, masks = map(list, zip(*tokens, strict=True))
    squares = sorted((value * value for value, mask in tokens if mask), reverse=True)
    fewest = next(n for n in range(len(squares) + 1) if sum(squares[n:]) <= upper * len(squares[n:]))
    left_out = outliers(log_ratios, masks, upper, sorted(cuts))
    chosen = sorted((v * v for v, m, out in zip(log_ratios, masks, left_out, strict=True) if m and out), reverse=True)
    assert not any(out and not mask for out, mask in zip(left_out, masks, strict=True))
    # Equal ones go together.
    assert len(chosen) == sum(square >= squares[fewest - 1] for square in squares) if fewest else not chosen
    kept = squares[len(chosen) :]
    assert not kept or sum(kept) / len(kept) <= upper


def test_ranks_without_tokens_take_part():
    assert outliers([0.1, 3.0, 0.1], [True, True, True], 0.04, (0, 2, 2, 3)) == [False, True, False]
    assert outliers([0.1, 3.0], [False, False], 0.04) == [False, False]
    assert outliers([3.0, -3.0], [True, True], 0.04) == [True, True]


def test_what_a_second_moment_leaves_out_is_rejected():
    theta, proximal, tokens = pack_tokens([Row((Token(-1.0, -1.0, -1.1, True, 1, 0), Token(-1.0, -1.0, -4.0, True, 1, 0)), 1.0)])
    config = decoupled(reject=(RejectSecondMomentConfig(upper=0.04),))
    with pytest.raises(ValueError, match="needs outliers"):
        correct(theta, proximal, tokens, config)
    left_out = second_moment_outliers(proximal - tokens.logp_behaviour, tokens.mask, 0.04, lambda values: values)
    found = correct(theta, proximal, msgspec.structs.replace(tokens, outliers=left_out), config)
    assert found.rejected.tolist() == [False, True]


@settings(max_examples=50)
@given(st.lists(rows_of_tokens(), min_size=1, max_size=3), st.sampled_from(["token", "segment", "sequence"]))
def test_normalised_weights_have_a_mean_of_one_over_what_they_weigh(parts, level):
    """Tokens, turns or rows of the whole batch, in Python; each part is a rank's."""
    config = decoupled(weight=level, bound=NormalizedBoundConfig(upper=1.5))
    units = []
    for rows in parts:
        for row in rows:
            for places in units_of(row, level):
                logs = [row.tokens[i].proximal - row.tokens[i].behaviour for i in places]
                units.append(min(math.exp(sum(logs) / len(logs)), 1.5))
    packed = [pack_tokens(rows) for rows in parts]

    def mean(part, add, _):
        _, proximal, tokens = part
        return mean_weight([(correct(proximal, proximal, tokens, config).weight, tokens)], level, add)

    found = on_ranks(mean, packed)
    expected = sum(units) / len(units) if units else 1.0
    assert found == pytest.approx([expected] * len(parts), rel=1e-5)
    for theta, proximal, tokens in packed:
        plain = correct(theta, proximal, tokens, config)
        normalised = correct(theta, proximal, msgspec.structs.replace(tokens, mean_weight=found[0]), config)
        assert (normalised.weight * found[0]).tolist() == pytest.approx(plain.weight.tolist(), rel=1e-5)
        assert torch.equal(normalised.truncated, plain.truncated)


def units_of(row, level):
    """Places of the tokens in the loss that share a weight."""
    places = [i for i, token in enumerate(row.tokens) if token.mask]
    if level == "token":
        return [[i] for i in places]
    if level == "sequence":
        return [places] if places else []
    turns = dict.fromkeys(row.tokens[i].turn for i in places)
    return [[i for i in places if row.tokens[i].turn == turn] for turn in turns]
