"""The critic: what it learns and what follows from it, on any grid, and after a resume."""

import msgspec
import numpy as np
import pytest
import rank_side
import torch
from learner_samples import assemble, make_batch, make_model, make_recipe, row_of, untimed
from loss_samples import decoupled_ppo
from ranks import run_ranks
from test_ranks import distance, weights_of

from asyncrl.core.measures.metrics import combine
from asyncrl.core.recipe.advantage import GaeAdvantageConfig
from asyncrl.core.recipe.algorithm import EpisodeCreditConfig, KlInRewardConfig, TurnCreditConfig
from asyncrl.learners.algorithm.token_credit import normalised, token_credit
from asyncrl.learners.algorithm.value_loss import value_loss
from asyncrl.learners.batches.micro_batch import pack

GAE = decoupled_ppo(advantage=GaeAdvantageConfig(lam=0.9, critic_lr=3e-3, value_clip=0.5))
BATCHES = [make_batch(version) for version in (5, 6, 7)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def run(function, folder, algorithm, *arguments, grid=(1, 1, 1), context=1, **learner):
    sides = dict(zip(("tensor", "pipeline", "data"), grid, strict=True))
    recipe = make_recipe(folder, **sides, **({"lr": 1e-3, "context_parallel": context} | learner))
    recipe = msgspec.structs.replace(recipe, algorithm=algorithm)
    return run_ranks(function, recipe, folder, *arguments, **msgspec.structs.asdict(recipe.learner.layout))


def readings_of(reports, steps):
    return [untimed(combine(r for rank in reports for r in rank[step].readings)) for step in range(steps)]


def train(folder, algorithm, batches=BATCHES, **options):
    reports, shards = zip(*run(rank_side.train_on, folder, algorithm, batches, **options), strict=True)
    return readings_of(reports, len(batches)), assemble(shards)


def packed(**changes):
    batch, episodes = make_batch()
    records = [msgspec.structs.replace(record, **changes) for record in batch.rows[:5]]
    part = pack(
        records,
        [row_of(episodes, record) for record in records],
        [[0.0]] * 5,
        [1.0] * 5,
        batch=batch,
        multiple=1,
        families={},
    )
    return part, records


@pytest.mark.parametrize("by_turn", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_credit_is_that_of_a_loop_over_the_sampled_tokens(by_turn, alpha):
    part, records = packed()
    if by_turn:
        records = [msgspec.structs.replace(r, turn_rewards=(0.5 * number, 1.0 - number)) for number, r in enumerate(records)]
    random = torch.Generator().manual_seed(0)
    values, divergences = (torch.randn(len(part.targets), generator=random) for _ in range(2))
    config = GaeAdvantageConfig(discount=0.9, lam=0.7, length_adaptive_alpha=alpha)
    credit = TurnCreditConfig() if by_turn else EpisodeCreditConfig()
    advantages, returns = token_credit(part, records, values, divergences, 0.3, config, credit)
    for row in range(5):
        places = [place for place in range(len(part.targets)) if part.rows.index[place] == row]
        lam = max(0.0, 1 - 1 / (alpha * len(places))) if alpha else 0.7
        following, ahead = 0.0, 0.0
        for place in reversed(places):
            reward = -0.3 * divergences[place].item()
            if by_turn and (place == places[-1] or part.turns.index[place] != part.turns.index[place + 1]):
                reward += records[row].turn_rewards[int(part.turns.index[place]) - int(part.turns.index[places[0]])]
            if not by_turn and place == places[-1]:
                reward += records[row].reward
            ahead = reward + 0.9 * following - values[place].item() + 0.9 * lam * ahead
            following = values[place].item()
            assert advantages[place].item() == pytest.approx(ahead, rel=1e-4, abs=1e-5)
            assert returns[place].item() == pytest.approx(ahead + following, rel=1e-4, abs=1e-5)


def test_advantages_are_normalised_over_the_tokens_in_the_loss():
    part, _ = packed()
    part = msgspec.structs.replace(part, advantages=torch.arange(len(part.mask), dtype=torch.float32))
    assert not part.mask.all()
    (result,) = normalised([part], add=alone, gather=alone)
    chosen = part.advantages[part.mask].double()
    expected = (part.advantages.double() - chosen.mean()) / chosen.std(correction=0)
    assert result.tolist() == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-6)
    (flat,) = normalised([msgspec.structs.replace(part, advantages=torch.ones(len(part.mask)))], add=alone, gather=alone)
    assert flat.tolist() == [0.0] * len(part.mask)


def alone(values):
    """The sum over the ranks that divide the batch, and their tensors end to end, where there is one."""
    return values


def test_what_episodes_bring_is_equal_if_it_differs_by_rounding():
    """A critic that knows nothing yet leaves the returns: not a spread to be blown up to full size."""
    part, records = packed()
    sums = (0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1)
    zeros = torch.zeros(len(part.mask))
    for rewards, spreads in ((sums, False), ((0.6, 0.6 + 1e-6), True)):
        earned = [msgspec.structs.replace(record, reward=rewards[number % 2]) for number, record in enumerate(records)]
        advantages, _ = token_credit(part, earned, zeros, zeros, 0.0, GaeAdvantageConfig(), EpisodeCreditConfig())
        (result,) = normalised([msgspec.structs.replace(part, advantages=advantages)], add=alone, gather=alone)
        assert result.dtype == torch.float32
        assert result[part.mask].abs().max() == pytest.approx(0.0 if not spreads else 1.0, rel=0.5, abs=0.0)


@pytest.mark.parametrize("apart", [0.0, 1.0])
def test_a_spread_between_ranks_is_a_spread(apart):
    """Each of two ranks sees equal advantages, 1 and ``1 + apart``; only together do they know whether they differ."""
    part, _ = packed()
    ones = torch.ones(len(part.mask), dtype=torch.float64)
    count = int(part.mask.sum())

    def add(values):
        if values.ndim:
            return values + torch.tensor([count, (1.0 + apart) * count], dtype=torch.float64)
        return values + count * (apart / 2) ** 2

    def gather(values):
        return torch.cat([values, torch.sign(values) * (1.0 + apart)])

    (result,) = normalised([msgspec.structs.replace(part, advantages=ones)], add=add, gather=gather)
    assert result.tolist() == pytest.approx([-1.0 if apart else 0.0] * len(part.mask))


def test_a_value_beyond_its_clip_has_no_gradient_towards_its_return():
    values = torch.tensor([0.1, 0.9, -0.9, 5.0], requires_grad=True)
    before, returns = torch.zeros(4), torch.tensor([1.0, 1.0, 1.0, 1.0])
    mask, share = torch.tensor([True, True, True, False]), torch.tensor([1.0, 2.0, 1.0, 1.0])
    outcome = value_loss(values, before, returns, mask, share, 0.5, 4)
    # The second has gone up by more than 0.5 already; the third has gone the wrong way, and may come back.
    assert outcome.loss.item() == pytest.approx((0.9**2 + 2 * 0.5**2 + 1.9**2) / 2 / 4)
    assert outcome.clipped.tolist() == [False, True, False, False]
    outcome.loss.backward()
    assert values.grad.tolist() == pytest.approx([-0.9 / 4, 0.0, -1.9 / 4, 0.0])


def test_the_critic_learns_what_rows_bring(folder):
    readings, _ = train(folder, GAE, [make_batch()] * 25, lr=1e-9, micro_batch_tokens=1000)
    assert readings[0]["critic/value_mean"] == 0.0
    assert readings[-1]["critic/loss"] < 0.3 * readings[0]["critic/loss"]
    assert readings[0]["critic/explained_variance"] < 0.1
    assert readings[-1]["critic/explained_variance"] > 0.7
    assert readings[0]["critic/grad_norm"] > 0


GRIDS = {
    "tp2": {"grid": (2, 1, 1)},
    "pp2": {"grid": (1, 2, 1)},
    "dp2": {"grid": (1, 1, 2)},
    "tp2-pp2-dp2": {"grid": (2, 2, 2)},
    "tp2-cp2": {"grid": (2, 1, 1), "context": 2},
    "vpp2": {"grid": (1, 2, 1), "virtual_pipeline": 2},
}


WITH_KL = msgspec.structs.replace(GAE, minibatches=2, kl=KlInRewardConfig(coefficient=0.1))


@pytest.fixture(scope="module")
def one_rank(folder):
    return train(folder, WITH_KL, BATCHES[:2])


@pytest.mark.parametrize("layout", GRIDS.values(), ids=GRIDS)
def test_every_grid_has_the_critic_of_one_rank(folder, one_rank, layout):
    expected, weights = one_rank
    readings, divided = train(folder, WITH_KL, BATCHES[:2], **layout)
    for step, expected_step in zip(readings, expected, strict=True):
        assert step == pytest.approx(expected_step, rel=2e-3, abs=1e-5)
    assert distance(divided, weights) < 1e-4
    assert expected[1]["critic/value_mean"] != 0


def test_warm_up_leaves_the_policy_where_it_is(folder):
    algorithm = msgspec.structs.replace(GAE, advantage=msgspec.structs.replace(GAE.advantage, critic_warmup_steps=7))
    readings, weights = train(folder, algorithm, BATCHES[:2])
    assert distance(weights, weights_of(folder)) == 0.0
    assert [step["learner/grad_norm"] for step in readings] == [0.0, 0.0]
    assert readings[1]["critic/loss"] < readings[0]["critic/loss"]
    assert {"loss/entropy", "staleness/mean", "correction/ess"} <= readings[0].keys()
    after, moved = train(folder, algorithm)
    assert after[2]["learner/grad_norm"] > 0
    assert distance(moved, weights) > 1e-4


@pytest.mark.parametrize("grid", [(1, 1, 1), (2, 2, 1), (1, 1, 2)], ids=["one", "tp2-pp2", "dp2"])
def test_it_goes_on_from_a_checkpoint_to_the_bit(folder, tmp_path, grid):
    target, after = tmp_path / "version-000008", [make_batch(8), make_batch(9)]
    trained = run(rank_side.train_and_save, folder, GAE, BATCHES[1:], target, after, grid=grid)
    again = run(rank_side.load_and_train, folder, GAE, target, after, grid=grid)
    assert readings_of([result[2] for result in again], 2) == readings_of([result[1] for result in trained], 2)
    weights, resumed = assemble([result[2] for result in trained]), assemble([result[3] for result in again])
    for name, tensor in weights.items():
        np.testing.assert_array_equal(resumed[name], tensor)


def test_it_goes_on_in_another_layout(folder, tmp_path):
    target, after = tmp_path / "version-000008", [make_batch(8)]
    trained = run(rank_side.train_and_save, folder, GAE, BATCHES[1:], target, after, grid=(2, 1, 2))
    again = run(rank_side.load_and_train, folder, GAE, target, after, grid=(1, 2, 1))
    (readings,), (expected,) = readings_of([r[2] for r in again], 1), readings_of([r[1] for r in trained], 1)
    assert readings == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_a_checkpoint_without_a_critic_is_refused(folder, tmp_path):
    target = tmp_path / "version-000008"
    run(rank_side.train_and_save, folder, decoupled_ppo(), [], target, BATCHES[:1])
    (((kind, text, _),),) = run(rank_side.loads, folder, GAE, [target])
    assert (kind, "critic False (this run: True)" in text) == ("CheckpointMismatch", True)
    assert "algorithm.advantage.kind" in text  # where the user changes it
