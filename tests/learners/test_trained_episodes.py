"""Every trained token is in exactly one kept trajectory, with the weight that the loss gave it."""

from collections import Counter
from pathlib import Path
from unittest import mock

import kept_side
import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_samples import (
    VOCABULARY,
    batch_of,
    family_numbers,
    make_batch,
    make_episode,
    make_model,
    make_recipe,
    make_several,
    row_of,
)
from loss_samples import decoupled, decoupled_ppo
from ranks import run_ranks
from tokenizers import Tokenizer, models

from asyncrl.core.episode import with_trained_roles
from asyncrl.core.measures.metrics import combine
from asyncrl.core.recipe.advantage import RemaxAdvantageConfig
from asyncrl.core.recipe.correction import MaskBoundConfig, RejectRatioConfig, TruncateBoundConfig
from asyncrl.core.recipe.trajectories import AllTrajectoriesConfig, SampledTrajectoriesConfig
from asyncrl.episodes.schema import SCHEMA
from asyncrl.episodes.writer import FATES, table
from asyncrl.learners.algorithm.losses import policy_loss
from asyncrl.learners.batches.micro_batch import pack
from asyncrl.learners.batches.mini_batches import mini_batches
from asyncrl.learners.batches.packing import plan
from asyncrl.learners.batches.token_records import TokenRecords
from asyncrl.learners.rank import FileMeeting, RankSpec
from asyncrl.run.kept.trained_episodes import TrainedEpisodes

LEFT_OUT = decoupled(bound=MaskBoundConfig(lower=0.3, upper=3.0), reject=(RejectRatioConfig(level="token", upper=40.0),))
SEVERAL = decoupled_ppo(advantage=RemaxAdvantageConfig(), correction=LEFT_OUT, minibatches=2, epochs=2)


def keeping(recipe, config=None, **algorithm):
    tracking = msgspec.structs.replace(recipe.tracking, trajectories=config or AllTrajectoriesConfig())
    return msgspec.structs.replace(recipe, tracking=tracking, algorithm=algorithm.get("algorithm", recipe.algorithm))


def with_tokenizer(folder):
    """``folder`` with a tokenizer that has a word for each token."""
    words = {f"w{number}": number for number in range(VOCABULARY)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return folder


def in_loss(row):
    return [fate == "trained" for fate in row["fates"]]


@st.composite
def batches(draw):
    episodes = []
    for group in range(draw(st.integers(1, 4))):
        alike = draw(st.sampled_from([0, 0, 6]))
        for sample in range(draw(st.integers(1, 4))):
            versions = draw(st.sampled_from([(3,), (4,), (5,), (3, 5), (3, 4, 5), (5, 4)]))
            episodes.append(
                make_episode(group, sample, alike or draw(st.integers(1, 6)), draw(st.integers(1, 6)), versions, 1.0, alike=alike)
            )
    greedy = draw(st.sets(st.sampled_from([(each.group_id, each.sample_index) for each in episodes]), max_size=3))
    return kept_side.with_greedy(*batch_of(episodes, 5, draw(st.integers(3, 5))), greedy)


@settings(max_examples=60)
@given(
    drawn=batches(),
    parts=st.integers(1, 3),
    slices=st.integers(1, 3),
    share=st.booleans(),
    bound=st.sampled_from([MaskBoundConfig(lower=0.3, upper=3.0), TruncateBoundConfig(upper=2.0)]),
    reject=st.sampled_from([(), (RejectRatioConfig(level="token", upper=40.0),)]),
    seed=st.integers(0, 99),
)
def test_every_token_of_every_row_is_kept_once_as_the_loss_had_it(drawn, parts, slices, share, bound, reject, seed):
    """The same plan, packing, loss and passes as in a training step; only the log-probabilities are drawn."""
    batch, episodes = drawn
    algorithm = decoupled_ppo(correction=decoupled(bound=bound, reject=reject))
    generator = torch.Generator().manual_seed(seed)
    recipe = keeping(make_recipe(Path("no-model"), data=slices), algorithm=algorithm)
    names, expected, found = [], {}, []
    for slice_number in range(slices):
        keeping_rank = TrainedEpisodes(recipe, Path("no-model"), Path("no-folder"), rank_of(recipe, slice_number))
        planned = [(part, plan(part, slices, 60, share_prefixes=share)) for part in mini_batches(batch, parts)]
        own = [
            (part, [part.rows[number] for number in rows_of])
            for part, of_slices in planned
            for rows_of in of_slices[slice_number]
        ]
        chosen = keeping_rank.chosen(batch, [one.name for _, some in own for one in some])
        records = TokenRecords(chosen)
        for epoch in range(2):
            for part, some in own:
                if not any(one.loss_tokens for one in part.rows):
                    continue
                micro = pack(
                    some,
                    [row_of(episodes, one) for one in some],
                    [[float(one.sample_index - 1)] for one in some],
                    [1.0] * len(some),
                    batch=part,
                    multiple=1,
                    families=family_numbers(part.rows) if share else {},
                )
                logp = torch.empty(len(micro.targets)).uniform_(-7, -1, generator=generator)
                outcome = policy_loss(logp, logp, torch.zeros_like(logp), micro, algorithm, 1.0)
                records.see(micro, logp, outcome)
                if epoch == 0:
                    left_out = ~micro.mask | outcome.correction.masked | outcome.correction.rejected
                    for number, one in enumerate(some):
                        mine = micro.rows.index == number
                        numbers = logp, torch.where(left_out, 0.0, outcome.correction.weight), micro.advantages
                        expected[one.name] = [values[mine].tolist() for values in numbers]
                        assert expected[one.name][1] == outcome.weight[mine].tolist()
        with mock.patch.object(keeping_rank._writer, "put") as put:
            keeping_rank.write(batch, episodes, chosen, records)
        for call in put.mock_calls:
            found += table(call.args[1](), lambda source: "world", str).to_pylist()
        names += chosen
    assert sorted(names) == sorted((*name, 0) for name in episodes)
    assert [(row["group_id"], row["sample_index"], row["part"]) for row in found] == names
    for row, name in zip(found, names, strict=True):
        (trajectory,) = episodes[name[:2]].trajectories
        sampled = trajectory.loss_mask
        assert row["token_ids"] == trajectory.token_ids.tolist()
        assert [fate == "given" for fate in row["fates"]] == (~sampled).tolist()
        if name not in expected:
            why = "not_trained" if episodes[name[:2]].sampling.temperature == 0 else "stale"
            assert set(np.array(row["fates"])[sampled]) == {why}
            assert row["learner_logprobs"] is row["advantages"] is row["weights"] is None
            continue
        logp, weights, advantages = expected[name]
        assert np.array(row["learner_logprobs"])[sampled].tolist() == logp
        assert np.array(row["weights"])[sampled].tolist() == weights
        assert np.array(row["advantages"])[sampled].tolist() == advantages
        assert (np.array(row["weights"]) > 0).tolist() == in_loss(row)
        stale = sampled & (trajectory.versions() < batch.oldest_version)
        assert [fate == "stale" for fate in row["fates"]] == stale.tolist()


def rank_of(recipe, slice_number):
    return RankSpec(rank=slice_number, layout=recipe.learner.layout, meeting=FileMeeting("nowhere"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return with_tokenizer(make_model(tmp_path_factory.mktemp("model")))


def greedy_batch():
    """The sample batch, whose first row of each group is greedy."""
    return kept_side.with_greedy(*make_batch(), [(group, 0) for group in range(3)])


@pytest.mark.parametrize(
    "layout",
    [{"data": 2}, {"tensor": 2}, {"pipeline": 2}, {"context_parallel": 2}],
    ids=["dp2", "tp2", "pp2", "cp2"],
)
def test_real_ranks_keep_what_their_loss_did(folder, tmp_path, layout):
    """Several mini-batches and epochs, tokens that are stale, masked and rejected, greedy rows, and prefixes that are shared."""
    batch, episodes = greedy_batch()
    recipe = keeping(make_recipe(folder, **layout), algorithm=SEVERAL)
    dimensions = {name.removesuffix("_parallel"): ranks for name, ranks in layout.items()}
    results = run_ranks(kept_side.train_and_keep, recipe, folder, batch, episodes, tmp_path, **dimensions)
    readings = combine(reading for some, _ in results for reading in some)
    passes = {name: of_row for _, seen in results for name, of_row in seen.items()}
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [f"train-000006-{number}.parquet" for number in range(layout.get("data", 1))]
    found = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert pq.read_schema(files[0]).equals(SCHEMA)
    assert sorted((row["group_id"], row["sample_index"]) for row in found) == sorted(episodes)
    fates = Counter(fate for row in found for fate in row["fates"])
    assert all(fates[fate] for fate in FATES), f"the test is to have tokens of every fate, but they are {fates}"
    assert fates["trained"] + fates["masked"] + fates["rejected"] == readings["learner/tokens"]
    assert (fates["masked"], fates["rejected"]) == (readings["learner/tokens_masked_weight"], readings["learner/tokens_rejected"])
    for row in found:
        name = row["group_id"], row["sample_index"], row["part"]
        sampled = episodes[name[:2]].trajectories[name[2]].loss_mask
        assert row["step"] == batch.version + 1 == row["version"] + 1
        assert (row["kind"], row["environment"], row["prompt"].split()[0]) == ("train", "calculator", f"w{row['token_ids'][0]}")
        if name in passes:
            assert len(passes[name]) == SEVERAL.epochs
            logp, weights = passes[name][0]
            assert np.array(row["learner_logprobs"], np.float32)[sampled].tolist() == pytest.approx(logp, rel=1e-6)
            assert np.array(row["weights"], np.float32)[sampled].tolist() == pytest.approx(weights, rel=1e-6)
        else:
            assert sampled[in_loss(row)].sum() == 0
            assert set(np.array(row["fates"])[sampled]) == {"not_trained"}


def test_a_sample_is_shared_out_over_the_slices():
    """Of its rows each slice keeps those of the sample, and greedy rows, which no slice trains, are kept by one."""
    batch, _ = greedy_batch()
    recipe = keeping(make_recipe(Path("no-model"), data=2), SampledTrajectoriesConfig(count=8))
    names = [row.name for row in batch.rows]
    kept_by = []
    for slice_number, trained in enumerate((names[::2], names[1::2])):
        episodes = TrainedEpisodes(recipe, Path("no-model"), Path("no-folder"), rank_of(recipe, slice_number))
        kept_by.append(episodes.chosen(batch, trained))
        assert {name for name in kept_by[-1] if name in names} <= set(trained)
    found = [name for names_of_slice in kept_by for name in names_of_slice]
    assert len(set(found)) == len(found) == 8
    assert sorted(Counter(group for group, *_ in found).values()) == [2, 3, 3]
    assert any(name not in names for name in found), "the test is to have a greedy row in the sample"


def test_only_one_rank_of_a_slice_keeps_anything():
    batch, _ = greedy_batch()
    every = [(*each.name, 0) for each in batch.episodes]
    recipe = keeping(make_recipe(Path("no-model"), tensor=2, pipeline=2, data=2, context_parallel=2))
    layout = recipe.learner.layout
    ranks = [RankSpec(rank=rank, layout=layout, meeting=FileMeeting("nowhere")) for rank in range(layout.ranks)]
    keep = [rank for rank in ranks if TrainedEpisodes(recipe, Path("no-model"), Path("no-folder"), rank).chosen(batch, every)]
    assert [(rank.pipeline_rank, rank.data_rank, rank.tensor_rank, rank.context_rank) for rank in keep] == [
        (1, 0, 0, 0),
        (1, 1, 0, 0),
    ]


def test_whole_episodes_are_kept_over_the_slices_also_what_is_not_trained():
    roles = [("solver", 3, 2), ("critic", 4, 3), ("solver", 5, 1)]
    batch, episodes = batch_of(
        with_trained_roles(make_several(group, sample, roles[: 1 + sample], 1.0), ["solver"])
        for group in range(2)
        for sample in range(3)
    )
    assert [row.part for row in batch.rows if row.sample_index == 2] == [0, 2, 0, 2]
    recipe = keeping(make_recipe(Path("no-model"), data=2), SampledTrajectoriesConfig(count=4))
    names = [row.name for row in batch.rows]
    kept_by, written = [], []
    for slice_number, trained in enumerate((names[::2], names[1::2])):
        rank = TrainedEpisodes(recipe, Path("no-model"), Path("no-folder"), rank_of(recipe, slice_number))
        kept_by.append(rank.chosen(batch, trained))
        with mock.patch.object(rank._writer, "put") as put:
            rank.write(batch, episodes, kept_by[-1], TokenRecords(kept_by[-1]))
        for call in put.mock_calls:
            written += table(call.args[1](), lambda source: "world", str).to_pylist()
    found = [name for of_slice in kept_by for name in of_slice]
    assert len(set(found)) == len(found)
    whole = {name[:2] for name in found}
    assert len(whole) == 4
    assert sorted(found) == [(*name, part) for name in sorted(whole) for part in range(1 + name[1])]
    for row in written:
        assert (row["role"], row["trained"]) == (roles[row["part"]][0], row["part"] != 1)
        assert ("not_trained" in row["fates"]) == (row["part"] == 1)
