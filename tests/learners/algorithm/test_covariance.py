"""The choice of tokens does not depend on which rank has which."""

import numpy as np
import pytest
import torch
from rank_threads import on_ranks

from asyncrl.core.recipe.loss import ClipCovLossConfig, KlCovLossConfig
from asyncrl.learners.algorithm.covariance import single_out

RANDOM = np.random.default_rng(3)
TOKENS = 60
LOGP = torch.from_numpy(RANDOM.uniform(-6, 0, TOKENS))
ADVANTAGES = torch.from_numpy(RANDOM.normal(0, 2, TOKENS))
DRAW = torch.from_numpy(RANDOM.random(TOKENS))
MASK = torch.from_numpy(RANDOM.random(TOKENS) < 0.8)


def chosen_by_ranks(config, cuts, logp=LOGP, advantages=ADVANTAGES, mask=MASK, draw=DRAW):
    """Which tokens are singled out when ranks hold consecutive parts."""
    parts = list(zip(*(column.tensor_split(cuts) for column in (logp, advantages, mask, draw)), strict=True))
    return torch.cat(on_ranks(lambda part, add, gather: single_out(*part, config, add=add, gather=gather), parts))


def covariances():
    logp, advantages = LOGP[MASK].numpy(), ADVANTAGES[MASK].numpy()
    return (LOGP.numpy() - logp.mean()) * (ADVANTAGES.numpy() - advantages.mean())


@pytest.mark.parametrize("cuts", [[], [20], [0, 5, 59]])
def test_kl_cov_takes_the_highest_of_the_whole_batch(cuts):
    chosen = chosen_by_ranks(KlCovLossConfig(share=0.1), cuts)
    number = int(0.1 * MASK.sum())
    highest = sorted(np.where(MASK, covariances(), -np.inf), reverse=True)[:number]
    assert sorted(covariances()[chosen.numpy()], reverse=True) == pytest.approx(highest)


@pytest.mark.parametrize("cuts", [[], [20], [0, 5, 59]])
def test_clip_cov_draws_among_those_in_range(cuts):
    config = ClipCovLossConfig(share=0.05, low=0.5, high=5.0)
    chosen = chosen_by_ranks(config, cuts)
    assert torch.equal(chosen, chosen_by_ranks(config, []))
    assert chosen.sum() == int(0.05 * MASK.sum())
    assert all(0.5 < value < 5.0 for value in covariances()[chosen.numpy()])
    assert not (chosen & ~MASK).any()


def test_all_that_qualify_are_taken_where_they_are_few():
    assert chosen_by_ranks(ClipCovLossConfig(share=1.0, low=4.0, high=6.0), [30]).sum() == sum(
        4.0 < value < 6.0 for value, inside in zip(covariances(), MASK, strict=True) if inside
    )
    assert not chosen_by_ranks(ClipCovLossConfig(share=0.5, low=1e6, high=2e6), [30]).any()


@pytest.mark.parametrize("cuts", [[], [20], [0, 5, 59]])
@pytest.mark.parametrize("advantage", [0.0, 0.1], ids=["zero", "equal"])
def test_of_tokens_that_tie_as_many_as_asked_for_are_drawn(cuts, advantage):
    """Equal advantages leave every covariance 0; which tokens are taken is up to what each has drawn, wherever it is."""
    equal = torch.full((TOKENS,), advantage)
    chosen = chosen_by_ranks(KlCovLossConfig(share=0.1), cuts, advantages=equal)
    number = int(0.1 * MASK.sum())
    expected = sorted((draw, place) for place, draw in enumerate(DRAW.tolist()) if MASK[place])[:number]
    assert sorted(chosen.nonzero().flatten().tolist()) == sorted(place for _, place in expected)


@pytest.mark.parametrize("config", [KlCovLossConfig(share=0.3), ClipCovLossConfig(share=0.2, low=-1.0, high=5.0)])
def test_the_choice_belongs_to_the_tokens_and_not_to_where_they_lie(config):
    """Some tie with others: the same log-probability and advantage several times over."""
    logp, advantages = (LOGP / 3).round(), ADVANTAGES.sign()
    expected = chosen_by_ranks(config, [], logp=logp, advantages=advantages)
    assert expected.sum() == int(config.share * MASK.sum())
    for seed in range(5):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(TOKENS))
        columns = {"logp": logp, "advantages": advantages, "mask": MASK, "draw": DRAW}
        moved = chosen_by_ranks(config, [7, 30], **{name: column[order] for name, column in columns.items()})
        assert torch.equal(moved, expected[order])
