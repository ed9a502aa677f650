from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_samples import NO_PAYLOAD

from asyncrl.core.batch import Batch, BatchRow
from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.payload import TrajectoryRecord
from asyncrl.core.trajectory import StopReason
from learners.packing import plan

BUDGET = 50
SAMPLED = ((PolicyVersion(0), 1),)
LENGTHS = st.lists(st.integers(1, BUDGET), min_size=1, max_size=60)


def batch_of(lengths):
    rows = [
        BatchRow.around(
            TrajectoryRecord(GroupId(i // 4), i % 4, length, SAMPLED, 0.0, StopReason.ENVIRONMENT_DONE, NO_PAYLOAD),
            TaskId("t"),
            PolicyVersion(0),
            1.0,
        )
        for i, length in enumerate(lengths)
    ]
    return Batch(PolicyVersion(0), PolicyVersion(0), tuple(rows))


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
    loads = [sum(lengths[row] for row in part) for rank in plan(batch_of(lengths), data_parallel, BUDGET, share_prefixes=True) for part in rank]
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
