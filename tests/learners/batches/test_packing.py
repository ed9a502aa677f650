from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_samples import NO_PAYLOAD

from asyncrl.core.batch import Batch, BatchRow
from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.payload import TrajectoryRecord, prompt_checksums
from asyncrl.core.trajectory import StopReason
from learners.batches.packing import plan

BUDGET = 50
WIDE = 2000
SAMPLED = ((PolicyVersion(0), 1),)
LENGTHS = st.lists(st.integers(1, BUDGET), min_size=1, max_size=60)


def batch_of(lengths):
    rows = [
        BatchRow.around(
            TrajectoryRecord(GroupId(i // 4), i % 4, length, SAMPLED, 0.0, StopReason.ENVIRONMENT_DONE, NO_PAYLOAD),
            TaskId("t"),
            "s",
            PolicyVersion(0),
            1.0,
        )
        for i, length in enumerate(lengths)
    ]
    return Batch(PolicyVersion(0), PolicyVersion(0), tuple(rows))


def batch_of_groups(groups):
    """Groups of (tokens of the prompt, tokens after it of each row)."""
    rows = []
    for number, (prompt, suffixes) in enumerate(groups):
        checksums = prompt_checksums(np.full(prompt, number, np.int32))
        for sample, suffix in enumerate(suffixes):
            record = TrajectoryRecord(
                GroupId(number),
                sample,
                prompt + suffix,
                SAMPLED,
                0.0,
                StopReason.ENVIRONMENT_DONE,
                NO_PAYLOAD,
                prompt_length=prompt,
                prompt_checksums=checksums,
            )
            rows.append(BatchRow.around(record, TaskId("t"), "s", PolicyVersion(0), 1.0))
    return Batch(PolicyVersion(0), PolicyVersion(0), tuple(rows))


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
