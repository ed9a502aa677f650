"""What long episodes lose, against the published formula and in the advantages of a batch."""

import msgspec
import pytest
import torch
from learner_samples import batch_of, changed, edited, make_batch, make_model, trajectories_changed
from loss_samples import decoupled_ppo
from test_reference_policy import train, with_turn_rewards

from asyncrl.core.recipe.advantage import GaeAdvantageConfig
from asyncrl.core.recipe.algorithm import EpisodeCreditConfig, KlInRewardConfig, OverlongPenaltyConfig, TurnCreditConfig
from asyncrl.learners.algorithm.overlong import overlong_penalties
from asyncrl.learners.algorithm.row_advantages import with_overlong_penalty


def published(length: int, longest: int, cache: int) -> float:
    """Equation 13 of arXiv:2503.14476, with the sign turned."""
    if length <= longest - cache:
        return 0.0
    if length <= longest:
        return -((longest - cache) - length) / cache
    return 1.0


@pytest.mark.parametrize(("limit", "ramp", "penalty"), [(20, 8, 1.0), (20, 20, 0.5), (5, 1, 3.0)])
def test_as_published(limit, ramp, penalty):
    lengths = list(range(1, 40))
    found = overlong_penalties(torch.tensor(lengths), OverlongPenaltyConfig(limit=limit, ramp=ramp, penalty=penalty))
    assert found.tolist() == pytest.approx([penalty * published(length, limit, ramp) for length in lengths])


def test_a_row_loses_it_once_whatever_credit_looks_at():
    batch, _ = make_batch()
    batch = changed(batch, lambda each: trajectories_changed(each, turn_rewards=(0.25, each.reward)))
    config = OverlongPenaltyConfig(limit=30, ramp=15)
    lost = [published(row.length, 30, 15) for row in batch.rows]
    assert 0.0 in lost
    assert any(0 < one < 1 for one in lost)
    whole = with_overlong_penalty(batch, config, EpisodeCreditConfig())
    assert [before.reward - after.reward for before, after in zip(batch.rows, whole.rows, strict=True)] == pytest.approx(lost)
    turns = with_overlong_penalty(batch, config, TurnCreditConfig())
    for before, after, one in zip(batch.rows, turns.rows, lost, strict=True):
        assert after.turn_rewards == pytest.approx((0.25, before.reward - one))


@pytest.mark.parametrize(
    "algorithm",
    [
        decoupled_ppo(),
        decoupled_ppo(kl=KlInRewardConfig(coefficient=0.1)),
        decoupled_ppo(advantage=GaeAdvantageConfig(), credit=TurnCreditConfig(), minibatches=2),
    ],
    ids=["episodes", "divergence in the reward", "turns with a critic"],
)
def test_training_is_that_of_the_reduced_rewards(tmp_path, algorithm):
    folder = make_model(tmp_path)
    config = OverlongPenaltyConfig(limit=30, ramp=15)
    batch, episodes = with_turn_rewards(*make_batch())
    reduced = []
    for episode in episodes.values():
        lost = published(len(episode), 30, 15)
        *turns, last = episode.trajectories[0].turns
        last = msgspec.structs.replace(last, reward=last.reward - lost)
        reduced.append(msgspec.structs.replace(edited(episode, turns=(*turns, last)), reward=episode.reward - lost))
    by_hand, _ = train(folder, algorithm, [batch_of(reduced)])
    found, _ = train(folder, msgspec.structs.replace(algorithm, overlong=config), [(batch, episodes)])
    without, _ = train(folder, algorithm, [(batch, episodes)])
    lost = [published(record.length, 30, 15) for record in batch.rows]
    assert found[0].pop("reward/overlong_penalty_mean") == pytest.approx(sum(lost) / len(lost))
    assert found[0] == pytest.approx(by_hand[0], rel=1e-6, abs=1e-9)
    assert found[0]["learner/grad_norm"] != pytest.approx(without[0]["learner/grad_norm"], rel=1e-3)
