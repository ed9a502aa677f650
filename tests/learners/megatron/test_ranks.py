"""However the model and the batch are divided over ranks: the same loss and the same weights, and those of plain Hugging Face."""

import math

import msgspec
import numpy as np
import pytest
import rank_side
import torch
from learner_samples import (
    assemble,
    batch_of,
    changed,
    make_batch,
    make_model,
    make_recipe,
    make_several,
    row_of,
    tensors_of,
    untimed,
)
from loss_samples import decoupled_ppo
from ranks import RankFailed, run_ranks
from transformers import AutoModelForCausalLM

from asyncrl.core.episode import with_trained_roles
from asyncrl.core.measures.metrics import combine
from asyncrl.core.recipe.algorithm import SequenceMeanTokenMeanConfig
from asyncrl.learners.rank import FileMeeting

AT_ONCE_S = 60.0
"""Far below the deadlines of ranks, which are ten minutes, and enough for a slow machine."""
GRIDS = {"tp2": (2, 1, 1), "pp2": (1, 2, 1), "dp2": (1, 1, 2), "tp2-pp2-dp2": (2, 2, 2)}


def train(folder, batch, episodes, *, steps=1, grid=(1, 1, 1), saved=None, **learner):
    """Readings of each step and the weights after the last."""
    tensor, pipeline, data = grid
    recipe = make_recipe(folder, tensor=tensor, pipeline=pipeline, data=data, **learner)
    results = run_ranks(
        rank_side.train, recipe, folder, batch, episodes, steps, saved, tensor=tensor, pipeline=pipeline, data=data
    )
    readings = [combine(r for reports, _, _ in results for r in reports[step].readings) for step in range(steps)]
    return readings, assemble([shards for _, shards, _ in results]), [needed for _, _, needed in results]


def distance(left, right):
    """Frobenius norm of the difference, over that of ``right``."""
    difference = math.sqrt(sum(np.square(left[name] - right[name]).sum() for name in right))
    return difference / math.sqrt(sum(np.square(tensor).sum() for tensor in right.values()))


def assert_same_step(weights, expected, before):
    """The new weights are equal, and so, less exactly, is what the step added: Adam enlarges the rounding of small gradients."""
    assert weights.keys() == expected.keys()
    assert distance(weights, expected) < 1e-5
    added, expected_added = ({name: new[name] - before[name] for name in before} for new in (weights, expected))
    assert distance(added, expected_added) < 1e-3


def flops_of(readings, ranks):
    """FLOPs of the whole step, computed from the FLOPs a second that a rank reports."""
    return readings["learner/tflops_per_rank"] * 1e12 * readings["learner/step_seconds"] * ranks


def weights_of(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return tensors_of(model)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def one_rank(folder):
    return train(folder, *make_batch())


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_every_grid_gives_what_one_rank_gives(folder, one_rank, grid):
    (expected,), weights, _ = one_rank
    tensor, pipeline, data = grid
    (readings,), divided, needed = train(folder, *make_batch(), grid=grid)
    assert untimed(readings) == pytest.approx(untimed(expected), rel=1e-5, abs=1e-6)
    if data == 1:
        # Data-parallel ranks may each have a copy of a prefix that rows share.
        assert flops_of(readings, tensor * pipeline) == pytest.approx(flops_of(expected, 1), rel=1e-12)
    assert_same_step(divided, weights, weights_of(folder))
    _, episodes = make_batch()
    slices = [needed[tensor * rank] for rank in range(data)]
    assert sorted(name for names in slices for name in names) == sorted((*name, 0) for name in episodes)
    assert all(names == slices[rank // tensor % data] for rank, names in enumerate(needed))


def test_micro_batch_size_changes_nothing(folder, one_rank):
    (expected,), weights, _ = one_rank
    (readings,), other, _ = train(folder, *make_batch(), micro_batch_tokens=1000)
    assert readings["loss/policy"] == pytest.approx(expected["loss/policy"], rel=1e-5)
    assert readings["learner/grad_norm"] == pytest.approx(expected["learner/grad_norm"], rel=1e-5)
    assert distance(other, weights) < 1e-5


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("qwen2", {}),
        ("qwen3", {}),
        ("llama", {}),
        ("qwen3", {"tie_word_embeddings": False}),
        ("llama", {"head_dim": 16}),
        ("qwen3_moe", {}),
        ("qwen3_moe", {"norm_topk_prob": False, "num_experts_per_tok": 1, "tie_word_embeddings": True}),
        ("qwen3_moe", {"decoder_sparse_step": 2}),
    ],
)
def test_one_step_is_that_of_plain_hugging_face(tmp_path, architecture, options):
    """Row by row, without packing, in float64, with torch's own Adam; a row's weight multiplies its loss terms."""
    folder = make_model(tmp_path / "model", architecture, **options)
    batch, episodes = make_batch()
    batch = changed(batch, lambda each: {"weight": (0.5, 1.0, 3.0)[each.group_id]})
    (readings,), weights, _ = train(folder, batch, episodes, lr=1e-3, weight_decay=0.1)
    before = weights_of(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager")
    loss = 0.0
    entropies, gaps = [], []
    for record in batch.rows:
        row = row_of(episodes, record)
        group = [other.reward for other in batch.rows if other.group_id == record.group_id]
        advantage = (record.reward - np.mean(group)) / (np.std(group) or 1.0)
        ids = torch.from_numpy(row.token_ids.astype(np.int64))
        logp = torch.log_softmax(model(ids[None]).logits[0, :-1] / 0.8, -1)
        for place in np.flatnonzero(row.versions() >= batch.oldest_version):
            chosen, behaviour = logp[place - 1, ids[place]], float(row.logprobs[place])
            weight = min(math.exp(chosen.item() - behaviour), 2.0)
            loss -= record.weight * weight * (chosen - chosen.detach()).exp() * advantage
            entropies.append(-(logp[place - 1].exp() * logp[place - 1]).sum().item())
            if row.versions()[place] == batch.version:
                gaps.append(abs(chosen.item() - behaviour))
    loss = loss / sum(record.weight * record.loss_tokens for record in batch.rows)
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=1e-3, weight_decay=0.1)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    optimizer.step()
    assert readings["loss/policy"] == pytest.approx(loss.item(), rel=1e-5)
    assert readings["loss/entropy"] == pytest.approx(np.mean(entropies), rel=1e-5)
    assert readings["mismatch/logprob_gap_mean_abs"] == pytest.approx(np.mean(gaps), rel=1e-5)
    assert readings["learner/grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert readings["learner/tokens"] == len(entropies) == sum(record.loss_tokens for record in batch.rows)
    assert readings["learner/tokens_masked_stale"] > 0
    assert_same_step(weights, tensors_of(model), before)


@pytest.mark.parametrize("unit", ["episode", "trajectory"])
@pytest.mark.parametrize("data", [1, 2])
def test_a_step_on_several_trajectories_is_that_of_plain_hugging_face(tmp_path, unit, data):
    """Each sequence's mean, then the mean over sequences: an episode's rows have its advantage and, together, one denominator."""
    folder = make_model(tmp_path / "model")
    shapes = [("solver", 9, 3), ("critic", 4, 5), ("solver", 6, 1), ("critic", 9, 2), ("solver", 3, 4)]
    counts = (1, 3, 5)
    episodes = [make_several(g, s, shapes[:n], float(g + s**2)) for g in range(2) for s, n in enumerate(counts)]
    batch, named = batch_of(with_trained_roles(each, ["solver"]) for each in episodes)
    algorithm = decoupled_ppo(aggregation=SequenceMeanTokenMeanConfig(unit=unit))
    recipe = msgspec.structs.replace(make_recipe(folder, data=data, lr=1e-3), algorithm=algorithm)
    results = run_ranks(rank_side.train, recipe, folder, batch, named, 1, None, data=data)
    readings = combine(reading for reports, _, _ in results for reading in reports[0].readings)
    names = [row.name for row in batch.rows]
    assert sorted(name for _, _, needed in results for name in needed) == names
    assert {part for _, _, part in names} == {0, 2, 4}, "critics are not trained"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    terms: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for row in batch.rows:
        trajectory = row_of(named, row)
        rewards = [float(row.group_id + sample**2) for sample in range(3)]
        advantage = (row.reward - np.mean(rewards)) / np.std(rewards)
        ids = torch.from_numpy(trajectory.token_ids.astype(np.int64))
        logp = torch.log_softmax(model(ids[None]).logits[0, :-1] / 0.8, -1)
        for place in np.flatnonzero(trajectory.loss_mask):
            chosen = logp[place - 1, ids[place]]
            weight = min(math.exp(chosen.item() - float(trajectory.logprobs[place])), 2.0)
            term = -weight * (chosen - chosen.detach()).exp() * advantage
            terms.setdefault(row.name[:2] if unit == "episode" else row.name, []).append(term)
    assert len(terms) == (6 if unit == "episode" else 12)
    loss = torch.stack([torch.stack(of_one).mean() for of_one in terms.values()]).mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    assert readings["loss/policy"] == pytest.approx(loss.item(), rel=1e-5)
    assert readings["learner/grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert readings["learner/tokens"] == sum(map(len, terms.values()))


def test_staleness_is_split_by_cause(folder):
    batch, episodes = make_batch(version=6, oldest=4)
    # The clock stood at 5 when they were committed: one version in the buffer, and one more in flight for tokens of version 4.
    (readings,), _, _ = train(folder, changed(batch, lambda each: {"committed_version": 5}), episodes)
    versions = np.concatenate([episode.trajectories[0].versions() for episode in episodes.values()])
    at = [int((versions == 6 - staleness).sum()) for staleness in range(3)]
    assert at[0] == 0 < min(at[1:])
    assert [readings[f"staleness/tokens_at_{staleness}"] for staleness in range(3)] == at
    assert readings["staleness/max"] == 2.0
    assert readings["staleness/mean"] == pytest.approx((at[1] + 2 * at[2]) / sum(at))
    assert readings["staleness/in_buffer_mean"] == 1.0
    assert readings["staleness/in_flight_mean"] == pytest.approx(at[2] / sum(at))
    assert "mismatch/logprob_gap_mean_abs" not in readings


def test_steps_raise_the_probability_of_what_was_better_than_its_group(folder, tmp_path):
    batch, episodes = make_batch()
    readings, weights, _ = train(folder, batch, episodes, steps=2, grid=(2, 1, 1), lr=1e-3, saved=tmp_path / "saved")

    def preference(model_folder):
        """Mean log-probability of the trained tokens, weighted by their advantage."""
        model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
        total = 0.0
        for record in batch.rows:
            row = row_of(episodes, record)
            mean = np.mean([other.reward for other in batch.rows if other.group_id == record.group_id])
            ids = torch.from_numpy(row.token_ids.astype(np.int64))
            places = torch.from_numpy(np.flatnonzero(row.versions() >= batch.oldest_version))
            with torch.no_grad():
                logp = torch.log_softmax(model(ids[None]).logits[0] / 0.8, -1)
            total += (record.reward - mean) * logp[places - 1, ids[places]].sum().item()
        return total

    assert preference(tmp_path / "saved") > preference(folder) + 1.0
    assert readings[0]["learner/lr"] == readings[1]["learner/lr"] == 1e-3
    saved = weights_of(tmp_path / "saved")
    assert distance(weights, saved) == 0.0


def test_bfloat16_keeps_float32_master_weights(folder):
    """Steps far smaller than a bfloat16 can hold must still add up."""
    batch, episodes = make_batch()
    start = train(folder, batch, episodes, lr=1e-12, dtype="bfloat16")[1]
    once = train(folder, batch, episodes, lr=2e-5, dtype="bfloat16")[1]
    often = train(folder, batch, episodes, lr=2e-5, dtype="bfloat16", steps=20)[1]
    assert distance(once, start) < 0.2 * distance(often, start)
    assert all(np.array_equal(tensor, torch.from_numpy(tensor).bfloat16().double().numpy()) for tensor in often.values())


@pytest.mark.parametrize(("ranks", "tile"), [(1, (4, 5)), (2, (100, 100)), (3, (2, 3))])
def test_log_probabilities_over_a_divided_vocabulary(ranks, tile):
    """With logits so large that exponentials overflow in float32, and in tiles that do not divide tokens and vocabulary."""
    random = np.random.default_rng(0)
    hidden, weight = ((6 * random.standard_normal(shape)).astype(np.float32) for shape in ((9, 8), (24, 8)))
    targets = random.integers(0, 24, 9)
    states, output = (torch.from_numpy(values).double().requires_grad_() for values in (hidden, weight))
    logits = states @ output.t() / 0.7
    assert logits.max() > 200
    logp = torch.log_softmax(logits, -1)
    chosen = logp[torch.arange(9), torch.from_numpy(targets)]
    entropy = -(logp.exp() * logp).sum(-1)
    of_logp, of_entropy = (chosen * torch.arange(9)).sum(), (entropy * torch.arange(9) ** 2).sum()
    expected = [chosen.detach(), entropy.detach()]
    for loss in (of_logp + of_entropy, of_logp, of_entropy):
        expected += torch.autograd.grad(loss, (states, output), retain_graph=True)
    results = run_ranks(rank_side.log_probabilities, hidden, weight, targets, 0.7, tile, tensor=ranks)
    for values in results:
        for number in (0, 1, 2, 4, 6):
            np.testing.assert_allclose(values[number], expected[number], rtol=2e-4, atol=2e-4)
    for number in (3, 5, 7):
        joined = np.concatenate([values[number] for values in results])
        np.testing.assert_allclose(joined, expected[number], rtol=2e-4, atol=2e-4)


def test_a_gradient_that_is_not_finite_stops_every_rank_before_its_weights_move(tmp_path):
    folder = make_model(tmp_path / "model", "llama")
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.norm.weight[0] = math.inf
    model.save_pretrained(tmp_path / "broken")
    recipe = make_recipe(tmp_path / "broken", data=2)
    results = run_ranks(rank_side.failure, recipe, tmp_path / "broken", *make_batch(), data=2)
    assert [kind for kind, _, _ in results] == ["TrainingDiverged"] * 2
    assert "trains version 5 is nan" in results[0][1]
    after, before = assemble([shards for _, _, shards in results]), weights_of(tmp_path / "broken")
    assert all(np.array_equal(after[name], before[name]) for name in before)


def test_a_rank_that_does_not_come_is_named_within_the_deadline(folder, tmp_path):
    recipe = make_recipe(folder, data=2)
    recipe = msgspec.structs.replace(recipe, deadlines=msgspec.structs.replace(recipe.deadlines, step=3.0))
    kind, text, _ = run_ranks(rank_side.failure, recipe, folder, *make_batch(), 1, tmp_path / "raised", data=2)[0]
    assert kind == "DeadlineExceeded"
    assert text.startswith("learner rank 0 waited 3 s for the other learner ranks (1) while training version 5; ")


@pytest.mark.parametrize("over_tcp", [False, True])
def test_ranks_listen_where_other_ranks_are_and_nowhere_else(folder, over_tcp):
    results = run_ranks(rank_side.listening, make_recipe(folder, data=2), data=2, over_tcp=over_tcp)
    assert [addresses for addresses, _, _ in results] == [{"127.0.0.1"}] * 2
    assert [total for _, total, _ in results] == [2.0, 2.0]
    assert {mode for _, _, mode in results} == {"" if over_tcp else "0o600"}


def test_a_place_to_meet_that_somebody_else_made_is_not_used(tmp_path):
    (tmp_path / "meeting").write_text("")
    with pytest.raises(FileExistsError):
        FileMeeting.make(tmp_path / "meeting")


@pytest.mark.parametrize("over_tcp", [False, True])
def test_ranks_that_do_not_come_up_are_named_within_the_deadline(folder, over_tcp):
    recipe = make_recipe(folder, data=2)
    recipe = msgspec.structs.replace(recipe, deadlines=msgspec.structs.replace(recipe.deadlines, start=1.5))
    kind, text = run_ranks(rank_side.late, recipe, data=2, over_tcp=over_tcp)[0]
    assert kind == "DeadlineExceeded"
    assert text.startswith("learner rank 0 waited 1.5 s for the other learner ranks (1) while coming up; ")


def test_a_rank_that_dies_is_noticed_at_once(folder):
    arguments = (make_recipe(folder, data=2), folder, *make_batch(), 1)
    kind, text, _ = run_ranks(rank_side.failure, *arguments, data=2, deadline=AT_ONCE_S)[0]
    assert kind == "RankLost"
    assert text.startswith("learner rank 0 lost another rank while training version 5; ")


def test_missing_rows_and_empty_batches_are_refused(folder):
    recipe = make_recipe(folder)
    batch, episodes = make_batch()
    lacking = {name: episode for name, episode in episodes.items() if name != (1, 2)}
    ((kind, text, _),) = run_ranks(rank_side.failure, recipe, folder, batch, lacking)
    assert (kind, "episodes [(1, 2)] (group, sample) of version 5 are missing" in text) == ("ValueError", True)
    nothing = msgspec.structs.replace(batch, oldest_version=6)
    ((kind, text, _),) = run_ranks(rank_side.failure, recipe, folder, nothing, episodes)
    assert (kind, "no token of the 12 rows" in text) == ("ValueError", True)


def test_replicas_that_differ_at_the_start_are_refused(folder):
    first, second = run_ranks(rank_side.differing_replicas, make_recipe(folder, data=2), data=2)
    assert first == second
    assert first.startswith("1 parameters, the first bias, differ")


def test_the_supervisor_ends_what_gloo_aborts():
    with pytest.raises(RankFailed, match="rank 1 died with exit code -6"):
        run_ranks(rank_side.abort, data=2, deadline=AT_ONCE_S)
