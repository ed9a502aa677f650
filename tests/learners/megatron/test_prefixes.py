"""Rows that share a prefix: found alike by plan and payload, and trained to the loss and gradients of rows that share nothing."""

from types import SimpleNamespace

import layout_side
import lora_side
import msgspec
import numpy as np
import pytest
import rank_side
import torch
from hypothesis import given
from hypothesis import strategies as st
from learner_samples import (
    VOCABULARY,
    assemble,
    batch_of,
    edited,
    family_numbers,
    make_episode,
    make_model,
    make_recipe,
    needed,
    separate,
    untimed,
)
from loss_samples import decoupled_ppo
from ranks import run_ranks
from test_critic import GAE
from test_layouts import assert_same_gradients

from asyncrl.core.ids import GroupId
from asyncrl.core.measures.metrics import combine
from asyncrl.core.recipe.algorithm import KlInLossConfig
from asyncrl.core.recipe.learner import LoraConfig
from asyncrl.learners.batches.micro_batch import pack
from asyncrl.learners.batches.prefixes import planned_prefix, shared_preamble, shared_prefix, tokens_before


def group(number, alike, prompts, completions):
    """Episodes whose first ``alike`` tokens are equal, and whose prompts have at least so many and one more."""
    shapes = zip(prompts, completions, strict=True)
    return [
        make_episode(number, sample, max(prompt, alike, 1), completion, (5,), float(sample % 2), alike=alike)
        for sample, (prompt, completion) in enumerate(shapes)
    ]


def with_preamble(episodes, length):
    """The episodes with prompts that begin alike in all groups."""
    tokens = np.random.default_rng(99).integers(0, VOCABULARY, length).astype(np.int32)
    begun_alike = []
    for episode in episodes:
        (row,) = episode.trajectories
        common = min(length, row.prompt_length())
        begun_alike.append(edited(episode, token_ids=np.concatenate([tokens[:common], row.token_ids[common:]])))
    return begun_alike


def only(episodes):
    return [episode.trajectories[0] for episode in episodes]


@st.composite
def groups(draw):
    """A few groups of 1 to 9 rows, which share nothing, a part of their prompts, or all of them. All may begin alike."""
    rows = []
    for number in range(draw(st.integers(1, 4))):
        size, alike = draw(st.integers(1, 9)), draw(st.sampled_from([0, 1, 2, 17, 64, 65, 100, 130, 200]))
        extra = draw(st.sampled_from([0, 1, 70]))
        prompts = [alike + draw(st.integers(0, extra)) for _ in range(size)]
        rows += group(number, alike, prompts, [draw(st.integers(1, 12)) for _ in range(size)])
    return with_preamble(rows, draw(st.sampled_from([0, 10, 40, 150])))


def packed(episodes, multiple, *, share_prefixes):
    batch, _ = batch_of(episodes)
    count = len(episodes)
    return pack(
        batch.rows,
        only(episodes),
        [[float(number)] for number in range(count)],
        [1.0] * count,
        batch=batch,
        multiple=multiple,
        families=family_numbers(batch.rows) if share_prefixes else {},
    )


def rows_of(part):
    """The tokens of each row, put together from the segments, and the places of each row's tokens in the packed sequence."""
    ends = np.cumsum(part.lengths)
    places = [np.arange(end - length, end) for end, length in zip(ends, part.lengths, strict=True)]
    first = 1 if part.preamble else 0
    own = first + len(part.prefixes)
    before = {row: [*places[:first], places[prefix]] for prefix, rows in enumerate(part.prefixes, first) for row in rows}
    return [np.concatenate([*before.get(row, []), places[own + row]]) for row in range(part.rows.count)]


@given(groups(), st.integers(1, 4))
def test_segments_put_together_are_the_rows(episodes, multiple):
    rows = only(episodes)
    plain, part = (packed(episodes, multiple, share_prefixes=share) for share in (False, True))
    assert plain.prefixes == ()
    assert sum(part.lengths) == len(part.token_ids)
    assert len(part.token_ids) % multiple == 0
    assert all(length > 0 for length in part.lengths)
    for number, (row, places) in enumerate(zip(rows, rows_of(part), strict=True)):
        assert part.token_ids[places].tolist() == row.token_ids[: needed(row)].tolist()
        mine = part.rows.index == number
        # Every prediction is made within the row's own segment.
        own = part.lengths[(part.preamble > 0) + len(part.prefixes) + number]
        assert part.positions[mine].tolist() == places[np.flatnonzero(row.loss_mask) - 1].tolist()
        assert set(part.positions[mine].tolist()) <= set(places[-own:].tolist())
    for name in ("targets", "logp_behaviour", "advantages", "mask", "share", "staleness"):
        assert torch.equal(getattr(part, name), getattr(plain, name)), name
    first = 1 if part.preamble else 0
    assert part.lengths[:first] == (part.preamble,)[:first]
    before = tokens_before(part.lengths, part.prefixes, part.preamble)
    saved = (len(part.prefixes) - 1) * part.preamble if part.preamble else 0
    for prefix, continuing in enumerate(part.prefixes, first):
        whole = part.preamble + part.lengths[prefix]
        assert len(continuing) > 1
        assert {before[first + len(part.prefixes) + row] for row in continuing} == {whole}
        saved += (len(continuing) - 1) * whole
    assert part.computed_tokens == plain.computed_tokens - saved


@given(st.integers(2, 9), st.integers(0, 300), st.integers(0, 80), st.data())
def test_records_promise_at_least_half_of_what_rows_share_and_never_more(size, alike, extra, data):
    prompts = [alike + data.draw(st.integers(0, extra)) for _ in range(size)]
    episodes = group(0, alike, prompts, [3] * size)
    rows = only(episodes)
    found, promised = shared_prefix(rows), planned_prefix(batch_of(episodes)[0].rows)
    agreeing = [len({int(token) for token in column}) == 1 for column in zip(*(row.token_ids for row in rows), strict=False)]
    common = agreeing.index(False) if False in agreeing else len(agreeing)
    assert found == max(0, min(common, min(row.prompt_length() for row in rows) - 1))
    assert promised <= found
    if found >= 128 or (len({row.prompt_length() for row in rows}) == 1 and common >= rows[0].prompt_length()):
        assert promised >= found / 2
    if extra == 0 and alike:
        assert promised == found == alike - 1


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(0, 50))
def test_the_preamble_is_all_that_prefixes_begin_with_but_one_token_of_each(lengths, alike):
    common = np.zeros(alike, np.int32)
    own = [np.full(max(0, length - alike), 1 + number, np.int32) for number, length in enumerate(lengths)]
    prefixes = [np.concatenate([common, rest])[:length] for length, rest in zip(lengths, own, strict=True)]
    found = shared_preamble([SimpleNamespace(token_ids=each, experts=None) for each in prefixes], lengths)
    expected = min(alike, *(length - 1 for length in lengths)) if len(lengths) > 1 else 0
    assert found == (expected if expected >= 16 else 0)


def test_a_row_shares_with_none_alone():
    rows = group(0, 20, [20], [4])
    assert planned_prefix(batch_of(rows)[0].rows) == 0
    assert packed(rows, 1, share_prefixes=True).prefixes == ()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"), max_position_embeddings=512)


@pytest.fixture(scope="module", params=["qwen3_moe", "gpt_oss"])
def experts(request, tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("experts"), request.param, max_position_embeddings=512)


MIXED = [
    *group(0, 40, [40] * 5, [3, 9, 2, 7, 7]),
    *group(1, 0, [5, 9, 4], [4, 4, 6]),
    *group(2, 70, [75, 90, 71, 80], [5, 1, 8, 2]),
    *group(3, 2, [2, 2], [6, 11]),
    *group(4, 30, [30], [6]),
]
BATCHES = {
    "mixed": MIXED,
    "two": group(0, 1, [1, 1], [2, 2]),
    "long": group(0, 200, [200] * 8, [2, 9, 4, 3, 6, 1, 1, 5]),
    "preamble": with_preamble(
        [
            *group(0, 40, [40] * 5, [3, 9, 2, 7, 7]),
            *group(1, 70, [75, 90, 71, 80], [5, 1, 8, 2]),
            *group(2, 27, [27, 27], [6, 11]),
            *group(3, 30, [30], [6]),
        ],
        26,
    ),
    # Two roles, or two ways in which an environment begins: what only some rows of the group have is shared among these.
    "roles": [
        *group(0, 70, [70] * 3, [3, 9, 2]),
        *(
            msgspec.structs.replace(each, group_id=GroupId(0), sample_index=3 + each.sample_index)
            for each in group(1, 90, [90] * 4, [7, 5, 4, 1])
        ),
    ],
    # The prompt is all that some rows have, but for one sampled token.
    "all": group(0, 33, [33] * 4, [1] * 4),
}


def gradients(folder, rows, algorithm=None, *, share, **learner):
    recipe = make_recipe(folder, clip_grad=1e9, **({"micro_batch_tokens": 1000} | learner))
    if algorithm is not None:
        recipe = msgspec.structs.replace(recipe, algorithm=algorithm)
    batch = batch_of(rows) if share else separate(*batch_of(rows))
    if recipe.learner.lora is None:
        ((report, shards, _),) = run_ranks(layout_side.gradients, recipe, folder, *batch)
    else:
        ((report, _, shards, _),) = run_ranks(lora_side.gradients, recipe, folder, *batch)
    readings = combine(report.readings)
    return untimed(readings), assemble([shards]), readings["learner/tokens_computed"]


@pytest.mark.parametrize("name", BATCHES)
def test_loss_and_gradients_are_those_without_sharing(folder, name):
    expected, expected_gradients, separate = gradients(folder, BATCHES[name], share=False)
    found, shared_gradients, shared = gradients(folder, BATCHES[name], share=True)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert_same_gradients(shared_gradients, expected_gradients)
    assert separate == sum(map(needed, only(BATCHES[name])))
    whole = packed(BATCHES[name], 1, share_prefixes=True)
    assert shared == whole.computed_tokens
    assert shared < separate or name == "two"
    assert whole.preamble == (25 if name == "preamble" else 0)
    if name == "roles":
        assert whole.prefixes == (range(3), range(3, 7))
        assert shared == separate - 2 * 69 - 3 * 89


def test_experts_have_the_gradients_without_sharing(experts):
    """gpt-oss sees windows of 8 tokens in half of its layers, and has sinks."""
    expected, expected_gradients, _ = gradients(experts, BATCHES["preamble"], share=False)
    found, shared_gradients, _ = gradients(experts, BATCHES["preamble"], share=True)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert_same_gradients(shared_gradients, expected_gradients)


VARIANTS = {
    "critic": (GAE, {}),
    "reference": (decoupled_ppo(kl=KlInLossConfig(coefficient=0.1)), {}),
    "recompute": (None, {"recompute": "full", "micro_batch_tokens": 220}),
    "adapters": (None, {"lora": LoraConfig(rank=3)}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_critic_reference_recompute_and_adapters_have_the_gradients_without_sharing(folder, name):
    """The critic is compared by its gradient's norm, which is among the readings."""
    algorithm, learner = VARIANTS[name]
    expected, expected_gradients, _ = gradients(folder, MIXED, algorithm, share=False, **learner)
    found, shared_gradients, _ = gradients(folder, MIXED, algorithm, share=True, **learner)
    assert_same_gradients(shared_gradients, expected_gradients)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert found["learner/grad_norm"] > 0
    assert found.get("critic/grad_norm", 1.0) > 0


@pytest.mark.parametrize(("groups", "preamble"), [(4, 0), (2, 0), (2, 30)])
def test_the_path_of_a_gpu_sees_what_that_of_a_cpu_does(groups, preamble):
    """Forward only: FlexAttention has no gradients on a CPU."""
    parts = run_ranks(rank_side.both_prefix_attentions, groups, preamble)
    ((of_cpu, of_gpu),) = parts
    np.testing.assert_allclose(of_gpu, of_cpu, atol=1e-5)


@pytest.mark.parametrize("window", [0, 6])
def test_the_path_of_a_gpu_has_the_sinks_and_windows_of_that_of_a_cpu(window):
    """Forward only, as above."""
    ((of_cpu, of_gpu),) = run_ranks(rank_side.both_sink_attentions, window)
    np.testing.assert_allclose(of_gpu, of_cpu, atol=1e-5)


def test_rows_in_padded_blocks_of_a_gpu_see_what_those_of_a_cpu_do():
    ((of_cpu, of_gpu),) = run_ranks(rank_side.both_row_attentions)
    for found, expected in zip(of_gpu, of_cpu, strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("prefixes", [(), (range(3), range(3, 5))])
def test_attention_in_bfloat16_is_that_in_float32_rounded_once(prefixes):
    """On a CPU. Computed in bfloat16, sums would be rounded again and again."""
    in_halves, in_floats = (
        run_ranks(rank_side.attention_on_a_cpu, dtype, prefixes)[0] for dtype in (torch.bfloat16, torch.float32)
    )
    for half, whole in zip(in_halves, in_floats, strict=True):
        np.testing.assert_array_equal(half, torch.from_numpy(whole).bfloat16().float().numpy())
