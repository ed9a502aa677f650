"""Several optimizer steps from one version to the next: plain Hugging Face's, on any grid, and the same bits when redone."""

import math

import msgspec
import numpy as np
import pytest
import rank_side
import torch
from learner_samples import assemble, batch_of, changed, edited, make_batch, make_model, make_recipe, row_of, untimed
from loss_samples import decoupled, decoupled_ppo
from ranks import run_ranks
from test_ranks import assert_same_step, distance, weights_of
from transformers import AutoModelForCausalLM

from asyncrl.core.measures.metrics import combine
from asyncrl.core.recipe.correction import NormalizedBoundConfig, RejectRatioConfig, RejectSecondMomentConfig
from asyncrl.learners.batches.mini_batches import mini_batches, order

SEVERAL = decoupled_ppo(minibatches=2, epochs=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def train(folder, algorithm, *, batch=None, grid=(1, 1, 1), **learner):
    tensor, pipeline, data = grid
    recipe = make_recipe(folder, tensor=tensor, pipeline=pipeline, data=data, **learner)
    recipe = msgspec.structs.replace(recipe, algorithm=algorithm)
    batch, episodes = make_batch() if batch is None else batch
    results = run_ranks(rank_side.train, recipe, folder, batch, episodes, 1, None, tensor=tensor, pipeline=pipeline, data=data)
    readings = combine(reading for reports, _, _ in results for reading in reports[0].readings)
    return untimed(readings), assemble([shards for _, shards, _ in results]), [needed for _, _, needed in results]


def without_gradient(version):
    """A batch all of whose rewards are equal, so that no token has an advantage."""
    batch, episodes = make_batch(version)
    return changed(batch, lambda each: {"reward": 1.0}), episodes


@pytest.mark.parametrize(
    ("batches", "learner", "moved"),
    [
        ((without_gradient(5),), {}, [False]),
        ((without_gradient(5),), {"weight_decay": 0.1}, [True]),
        ((make_batch(5), without_gradient(6)), {}, [True, True]),
        ((without_gradient(5),), {"weight_decay": 1e-9, "dtype": "bfloat16"}, [False]),
    ],
    ids=["nothing", "decay", "momentum", "less_than_a_bit"],
)
def test_the_weights_move_without_a_gradient_where_momentum_or_decay_moves_them(folder, batches, learner, moved):
    recipe = msgspec.structs.replace(make_recipe(folder, lr=1e-3, **learner), algorithm=decoupled_ppo())
    (found,) = run_ranks(rank_side.movements, recipe, folder, batches)
    assert found == [(each, each) for each in moved]


def test_the_steps_are_those_of_plain_hugging_face(folder):
    """The anchor is the policy before the first of them; each divides by its own tokens; rewards are compared before dividing."""
    batch, episodes = make_batch()
    readings, weights, _ = train(folder, SEVERAL, lr=1e-3)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)

    def log_probability(record):
        row = row_of(episodes, record)
        ids = torch.from_numpy(row.token_ids.astype(np.int64))
        places = torch.from_numpy(np.flatnonzero(row.versions() >= batch.oldest_version))
        logp = torch.log_softmax(model(ids[None]).logits[0] / 0.8, -1)
        return logp[places - 1, ids[places]], torch.from_numpy(row.logprobs)[places].double()

    with torch.no_grad():
        proximal = {record.name: log_probability(record)[0] for record in batch.rows}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    parts = mini_batches(batch, 2)
    losses, norms, clipped = [], [], 0
    for number in order(batch, 2, 2):
        loss = 0.0
        for record in parts[number].rows:
            group = [other.reward for other in batch.rows if other.group_id == record.group_id]
            advantage = (record.reward - np.mean(group)) / (np.std(group) or 1.0)
            logp, behaviour = log_probability(record)
            before = proximal[record.name]
            ratio = (logp - before).exp()
            free, held = ratio * advantage, ratio.clamp(0.8, 1.28) * advantage
            loss = loss - ((before - behaviour).exp().clamp(max=2.0) * torch.minimum(free, held)).sum()
            clipped += int((held < free).sum())
        loss = loss / sum(record.loss_tokens for record in parts[number].rows)
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
    assert readings["loss/policy"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert readings["learner/grad_norm"] == pytest.approx(np.mean(norms), rel=1e-4)
    tokens = sum(record.loss_tokens for record in batch.rows)
    assert readings["loss/clip_fraction"] == pytest.approx(clipped / (2 * tokens)) != 0
    assert readings["learner/tokens"] == tokens
    expected = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    assert_same_step(weights, expected, weights_of(folder))


REJECTING = msgspec.structs.replace(SEVERAL, correction=decoupled(reject=(RejectRatioConfig(level="token", upper=9.0),)))


@pytest.fixture(scope="module")
def one_rank(folder):
    return train(folder, REJECTING)


@pytest.mark.parametrize("grid", [(2, 1, 1), (1, 2, 1), (1, 1, 2)], ids=["tp2", "pp2", "dp2"])
def test_every_grid_takes_the_same_steps(folder, one_rank, grid):
    expected, weights, _ = one_rank
    readings, divided, needed = train(folder, REJECTING, grid=grid)
    assert readings == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert distance(divided, weights) < 1e-4
    tensor, _, data = grid
    slices = [needed[tensor * rank] for rank in range(data)]
    assert sorted(name for names in slices for name in names) == sorted((*name, 0) for name in make_batch()[1])


def test_readings_are_of_one_batch_and_tell_how_far_off_policy_it_was(folder):
    once, _, _ = train(folder, decoupled_ppo(), lr=1e-3)
    several, _, _ = train(folder, SEVERAL, lr=1e-3)
    of_the_data = [name for name in once if name.startswith(("staleness/", "kl/", "mismatch/", "learner/tokens", "correction/"))]
    of_the_data.remove("staleness/optimizer_steps_mean")
    assert {name: several[name] for name in of_the_data} == pytest.approx({name: once[name] for name in of_the_data}, rel=1e-5)
    assert once["staleness/optimizer_steps_mean"] == pytest.approx(once["staleness/mean"])
    batch, _ = make_batch()
    tokens = [sum(record.loss_tokens for record in part.rows) for part in mini_batches(batch, 2)]
    taken = sum(step * tokens[part] for step, part in enumerate(order(batch, 2, 2))) / (2 * sum(tokens))
    assert several["staleness/optimizer_steps_mean"] == pytest.approx(4 * once["staleness/mean"] + taken)
    assert once["loss/kl_anchor_theta"] == 0 < several["loss/kl_anchor_theta"]


def test_fresh_tokens_leave_the_log_linear_anchor_behind_as_the_steps_move_the_policy(folder):
    """Nothing is stale: the log-linear anchor is that of plain PPO."""
    batch, episodes = make_batch(version=5, oldest=5)
    fresh = msgspec.structs.replace(SEVERAL, correction=decoupled(anchor="proximal_log_linear"))
    plain = msgspec.structs.replace(SEVERAL, correction=decoupled(anchor="behaviour", weight="none"))
    readings, weights, _ = train(folder, fresh, batch=(batch, episodes), lr=1e-3)
    expected, plain_weights, _ = train(folder, plain, batch=(batch, episodes), lr=1e-3)
    assert readings == pytest.approx(expected)
    assert distance(weights, plain_weights) < 1e-9
    assert readings["loss/clip_fraction"] > 0


@pytest.mark.parametrize(
    ("algorithm", "passes"),
    [
        (decoupled_ppo(), 0),
        (SEVERAL, 2),
        (decoupled_ppo(epochs=3), 1),
        (msgspec.structs.replace(SEVERAL, correction=decoupled(anchor="proximal_log_linear")), 0),
        (decoupled_ppo(correction=decoupled(reject=(RejectSecondMomentConfig(),))), 1),
        (decoupled_ppo(correction=decoupled(bound=NormalizedBoundConfig())), 1),
    ],
    ids=["one-step", "several", "epochs", "log-linear", "second-moment", "normalized"],
)
def test_the_proximal_policy_is_computed_ahead_only_where_it_is_needed(folder, algorithm, passes):
    recipe = msgspec.structs.replace(make_recipe(folder), algorithm=algorithm)
    assert run_ranks(rank_side.passes_ahead, recipe, folder, *make_batch()) == [passes]


def test_a_mini_batch_without_a_token_in_the_loss_takes_no_step(folder):
    batch, episodes = make_batch(version=9, oldest=5)
    first = {row.group_id for row in mini_batches(batch, 3)[0].rows}
    # Tokens of versions 3 and 4 alone: too old, all of them.
    batch, episodes = batch_of((old(each) if name[0] in first else each for name, each in episodes.items()), 9, 5)
    readings, weights, _ = train(folder, msgspec.structs.replace(SEVERAL, minibatches=3), batch=(batch, episodes))
    assert readings["learner/tokens"] == sum(row.loss_tokens for row in batch.rows)
    assert all(math.isfinite(value) for value in readings.values())
    assert distance(weights, weights_of(folder)) > 1e-3


def old(episode):
    spans = episode.trajectories[0].version_spans
    return edited(episode, version_spans=tuple(msgspec.structs.replace(span, version=min(span.version, 4)) for span in spans))


@pytest.mark.parametrize("grid", [(1, 1, 1), (2, 2, 1)], ids=["one", "tp2-pp2"])
def test_redone_from_a_checkpoint_the_steps_give_the_same_bits(folder, tmp_path, grid):
    tensor, pipeline, data = grid
    recipe = make_recipe(folder, tensor=tensor, pipeline=pipeline, data=data)
    recipe = msgspec.structs.replace(recipe, algorithm=SEVERAL)
    target = tmp_path / "version-000007"
    sides = {"tensor": tensor, "pipeline": pipeline, "data": data}
    before, after = [make_batch(6)], [make_batch(7), make_batch(8)]
    trained = run_ranks(rank_side.train_and_save, recipe, folder, before, target, after, **sides)
    again = run_ranks(rank_side.load_and_train, recipe, folder, target, after, **sides)
    weights, redone = assemble([result[2] for result in trained]), assemble([result[3] for result in again])
    for name, tensor_ in weights.items():
        np.testing.assert_array_equal(redone[name], tensor_)
