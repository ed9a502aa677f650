from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_samples import NO_PAYLOAD

from asyncrl.core.batch import Batch, BatchEpisode
from asyncrl.core.episode_records import EpisodeRecord, TrajectoryRecord, prompt_checksums
from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.trajectory import StopReason
from asyncrl.learners.batches.packing import plan
from asyncrl.learners.batches.prefixes import families, planned_prefix

BUDGET = 50
WIDE = 2000
SAMPLED = ((PolicyVersion(0), 1),)
LENGTHS = st.lists(st.integers(1, BUDGET), min_size=1, max_size=60)


def episode(group, sample, *trajectories):
    record = EpisodeRecord(GroupId(group), sample, 0.0, StopReason.ENVIRONMENT_DONE, NO_PAYLOAD, trajectories)
    return BatchEpisode.around(record, TaskId("t"), "s", 1.0)


def batch_of(lengths):
    episodes = [episode(i // 4, i % 4, TrajectoryRecord(length, SAMPLED)) for i, length in enumerate(lengths)]
    return Batch(PolicyVersion(0), PolicyVersion(0), tuple(episodes))


def prompted(tokens, suffix):
    """A row with these tokens as its prompt, and ``suffix`` more."""
    prompt = np.array(tokens, np.int32)
    checksums = prompt_checksums(prompt)
    return TrajectoryRecord(len(prompt) + suffix, SAMPLED, prompt_length=len(prompt), prompt_checksums=checksums)


def batch_of_groups(groups):
    """Groups of (tokens of the prompt, tokens after it of each row)."""
    episodes = [
        episode(number, sample, prompted([number] * prompt, suffix))
        for number, (prompt, suffixes) in enumerate(groups)
        for sample, suffix in enumerate(suffixes)
    ]
    return Batch(PolicyVersion(0), PolicyVersion(0), tuple(episodes))


def computed(batch, part):
    """Tokens that a micro-batch computes, counted group by group."""
    rows = sorted((batch.rows[number] for number in part), key=lambda row: row.group_id)
    total = 0
    for _, of_group in groupby(rows, key=lambda row: row.group_id):
        members = list(of_group)
        shared = max(0, members[0].prompt_length - 1) if len(members) > 1 else 0
        total += sum(row.length for row in members) - (len(members) - 1) * shared
    return total


GROUPS = st.lists(
    st.tuples(st.sampled_from([0, 1, 2, 30, 400, 1000]), st.lists(st.integers(1, 900), min_size=1, max_size=8)),
    min_size=1,
    max_size=12,
)


@given(GROUPS, st.integers(1, 5))
def test_invariants_where_groups_share_their_prompts(groups, data_parallel):
    batch = batch_of_groups(groups)
    ranks = plan(batch, data_parallel, WIDE, share_prefixes=True)
    micro_batches = [part for rank in ranks for part in rank]
    assert sorted(row for part in micro_batches for row in part) == list(range(len(batch.rows)))
    assert len({len(rank) for rank in ranks}) == 1
    for part in micro_batches:
        assert computed(batch, part) <= WIDE
        # Rows that share are neighbours, the longest first.
        together = [key for key, _ in groupby(batch.rows[number].group_id for number in part)]
        sharing = [group for group in set(together) if groups[group][0] > 1]
        assert all(together.count(group) == 1 for group in sharing)
        for group in sharing:
            lengths = [batch.rows[number].length for number in part if batch.rows[number].group_id == group]
            assert lengths == sorted(lengths, reverse=True)
    whole = sum(computed(batch, range(len(batch.rows))[start:end]) for start, end in _spans(groups))
    if data_parallel == 1 and all(prompt - 1 + sum(suffix + 1 for suffix in suffixes) <= WIDE for prompt, suffixes in groups):
        # Groups that fit are never cut, so nothing is computed twice.
        assert sum(computed(batch, part) for part in micro_batches) == whole


def _spans(groups):
    ends = np.cumsum([len(suffixes) for _, suffixes in groups]).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("data_parallel", [2, 4])
def test_ranks_compute_about_as_much_where_groups_share_their_prompts(count, data_parallel):
    random = np.random.default_rng(count)
    batch = batch_of_groups([(512, (128 * np.exp(0.5 * random.standard_normal(8))).astype(int).tolist()) for _ in range(count)])
    loads = [sum(computed(batch, part) for part in rank) for rank in plan(batch, data_parallel, WIDE, share_prefixes=True)]
    # Of single rows none is beyond 1024 tokens: that is how far greedy loads of them could lie apart.
    least = sum(computed(batch, range(start, start + 8)) for start in range(0, 8 * count, 8)) / data_parallel
    assert max(loads) < 1.5 * least + 512
    separate = [
        sum(batch.rows[row].length for part in rank for row in part)
        for rank in plan(batch, data_parallel, WIDE, share_prefixes=False)
    ]
    assert max(loads) < max(separate)


def test_a_group_too_large_for_one_micro_batch_is_cut_and_its_prefix_repeated():
    batch = batch_of_groups([(1000, [200] * 8)])
    (rank,) = plan(batch, 1, WIDE, share_prefixes=True)
    assert sorted(len(part) for part in rank) == [4, 4]
    assert [computed(batch, part) for part in rank] == [999 + 4 * 201] * 2
    (separate,) = plan(batch, 1, WIDE, share_prefixes=False)
    assert [len(part) for part in separate] == [1] * 8


@given(LENGTHS, st.integers(1, 5))
def test_invariants(lengths, data_parallel):
    ranks = plan(batch_of(lengths), data_parallel, BUDGET, share_prefixes=True)
    micro_batches = [part for rank in ranks for part in rank]
    assert len(ranks) == data_parallel
    assert sorted(row for part in micro_batches for row in part) == list(range(len(lengths)))
    assert len({len(rank) for rank in ranks}) == 1
    assert all(sum(lengths[row] for row in part) <= BUDGET for part in micro_batches)
    assert all(lengths[a] >= lengths[b] for part in micro_batches for a, b in pairwise(part))
    assert ranks == plan(batch_of(lengths), data_parallel, BUDGET, share_prefixes=True)


@given(LENGTHS, st.integers(1, 5))
def test_balance(lengths, data_parallel):
    loads = [
        sum(lengths[row] for row in part)
        for rank in plan(batch_of(lengths), data_parallel, BUDGET, share_prefixes=True)
        for part in rank
    ]
    # Greedy: the last row to go into the heaviest part went there because that part was then the lightest.
    assert max(loads) - min(loads) <= max(lengths)


@given(LENGTHS)
def test_one_rank_needs_at_most_twice_the_fewest_micro_batches(lengths):
    (rank,) = plan(batch_of(lengths), 1, BUDGET, share_prefixes=True)
    assert len(rank) <= 2 * -(-sum(lengths) // BUDGET)


def test_few_long_rows_leave_a_micro_batch_empty_rather_than_a_rank_short():
    ranks = plan(batch_of([BUDGET] * 3), 2, BUDGET, share_prefixes=True)
    assert [len(rank) for rank in ranks] == [2, 2]
    assert sorted(len(part) for rank in ranks for part in rank) == [0, 1, 1, 1]


def test_a_row_beyond_the_budget_is_named():
    with pytest.raises(
        RecipeError, match=r"learner.micro_batch_tokens: 50 .* sample 1 of group 0, which has 51; set it to at least 51"
    ):
        plan(batch_of([10, 51]), 1, BUDGET, share_prefixes=True)


def families_of(*prompts):
    """The families of a group of rows with these prompts."""
    rows = [prompted(tokens, 5) for tokens in prompts]
    return families(Batch(PolicyVersion(0), PolicyVersion(0), (episode(0, 0, *rows),)).rows)


SYSTEM, TOOLS = [1] * 200, [2] * 300


def test_rows_share_what_some_of_a_group_have():
    """Roles have prompts of their own, and so have rows of one environment that begins each episode in another way."""
    assert families_of(SYSTEM, TOOLS, SYSTEM, TOOLS, [3] * 90) == [[0, 2], [1, 3], [4]]
    assert families_of(SYSTEM, SYSTEM, SYSTEM) == [[0, 1, 2]], "where all share all, they are one family"
    assert families_of([1] * 70, [2] * 70) == [[0], [1]]


def test_a_group_is_divided_only_where_that_saves_more():
    begun = [7] * 64
    alike, other = begun + [1] * 1000, begun + [2] * 1000
    assert families_of(alike, alike, other, other) == [[0, 1], [2, 3]]
    assert families_of(alike, other) == [[0, 1]], "the first 64 tokens are all that they share"
    several = [begun + [10 + number] * 70 for number in range(8)]
    assert families_of(*several, several[0][:128]) == [[*range(9)]], "one pair saves less than nine rows that share 64 tokens"
    assert families_of(alike, alike, *several) == [[0, 1], [*range(2, 10)]], "what is left shares what all have"


def test_families_of_other_groups_are_apart():
    batch = Batch(PolicyVersion(0), PolicyVersion(0), tuple(episode(group, 0, prompted(SYSTEM, 5)) for group in range(2)))
    assert families(batch.rows) == [[0], [1]]


@given(st.lists(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=5), min_size=1, max_size=6), st.integers(1, 3))
def test_a_plan_counts_what_its_families_share(groups, data_parallel):
    prompts = [SYSTEM, TOOLS, [1] * 64 + [5] * 500]
    episodes = tuple(
        episode(group, 0, *(prompted(prompts[which], 20 + which + part) for part, which in enumerate(parts)))
        for group, parts in enumerate(groups)
    )
    batch = Batch(PolicyVersion(0), PolicyVersion(0), episodes)
    number_of = {row: number for number, family in enumerate(families(batch.rows)) for row in family}
    ranks = plan(batch, data_parallel, WIDE, share_prefixes=True)
    assert sorted(row for rank in ranks for part in rank for row in part) == list(range(len(batch.rows)))
    for part in (part for rank in ranks for part in rank):
        total, shared = 0, []
        for number in dict.fromkeys(number_of[row] for row in part):
            members = [batch.rows[row] for row in part if number_of[row] == number]
            places = [place for place, row in enumerate(part) if number_of[row] == number]
            assert places == list(range(places[0], places[-1] + 1)), "rows of a family are neighbours"
            prefix = planned_prefix(members)
            shared.append(len(members) > 1)
            total += sum(row.length for row in members) - prefix * (len(members) - 1)
        assert total <= WIDE
        assert shared == sorted(shared, reverse=True), "and come before all others"
