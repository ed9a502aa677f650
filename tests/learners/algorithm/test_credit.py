"""Credit by turn and generalised advantages, against loops over each row."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.batch import Batch, BatchEpisode
from asyncrl.core.episode_records import PayloadRef, TrajectoryRecord
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.recipe.advantage import GrpoAdvantageConfig, RlooAdvantageConfig
from asyncrl.core.recipe.algorithm import AlgorithmConfig, EpisodeCreditConfig, OverlongPenaltyConfig, TurnCreditConfig
from asyncrl.core.trajectory import StopReason
from asyncrl.learners.algorithm.credit import turn_groups, turn_places, turn_returns
from asyncrl.learners.algorithm.gae import discounted_sums, generalised_advantages, length_adaptive_lambdas
from asyncrl.learners.algorithm.row_advantages import row_advantages, with_overlong_penalty

ROWS = st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=9), min_size=0, max_size=5)


def index_of(rows):
    return torch.tensor([number for number, row in enumerate(rows) for _ in row], dtype=torch.int64)


def flat(rows):
    return torch.tensor([value for row in rows for value in row], dtype=torch.float64)


@given(ROWS, st.sampled_from([1.0, 0.9, 0.0]))
def test_a_turn_is_credited_with_what_came_from_it_on(rows, discount):
    expected = [
        sum(discount**later * value for later, value in enumerate(row[start:])) for row in rows for start in range(len(row))
    ]
    assert turn_returns(flat(rows), index_of(rows), discount).tolist() == pytest.approx(expected)


@given(ROWS)
def test_places_count_from_each_rows_first_turn(rows):
    assert turn_places(index_of(rows)).tolist() == [place for row in rows for place in range(len(row))]


def test_turns_are_compared_in_the_same_place_of_the_same_group():
    groups = turn_groups(torch.tensor([0, 0, 0, 1, 0]), torch.tensor([0, 1, 0, 0, 1]))
    assert groups[0] == groups[2]
    assert groups[1] == groups[4]
    assert len(set(groups.tolist())) == 3


@given(ROWS, st.sampled_from([1.0, 0.9]), st.sampled_from([1.0, 0.95, 0.0]), st.randoms(use_true_random=False))
def test_generalised_advantages_are_those_of_a_loop_backwards(rows, discount, smoothing, random):
    values = [[random.uniform(-2, 2) for _ in row] for row in rows]
    expected = []
    for rewards, of_row in zip(rows, values, strict=True):
        ahead, next_value, backwards = 0.0, 0.0, []
        for reward, value in zip(reversed(rewards), reversed(of_row), strict=True):
            ahead = reward + discount * next_value - value + discount * smoothing * ahead
            next_value = value
            backwards.append(ahead)
        expected += backwards[::-1]
    row = index_of(rows)
    lambdas = torch.full((len(row),), smoothing, dtype=torch.float64)
    advantages, returns = generalised_advantages(flat(values), flat(rows), row, discount, lambdas)
    assert advantages.tolist() == pytest.approx(expected, abs=1e-9)
    assert returns.tolist() == pytest.approx([a + v for a, v in zip(expected, flat(values).tolist(), strict=True)], abs=1e-9)


def test_longer_rows_look_further_back():
    lambdas = length_adaptive_lambdas(torch.tensor([1, 40, 400]), alpha=0.05)
    assert lambdas.tolist() == pytest.approx([0.0, 0.5, 0.95])


def test_a_long_row_costs_few_steps_and_stays_exact():
    values = torch.ones(10_000, dtype=torch.float64)
    decay = torch.full_like(values, 0.999)
    assert discounted_sums(values, decay)[0].item() == pytest.approx((1 - 0.999**10_000) / 0.001)


def record(group, sample, turn_rewards, trajectories=1):
    of_one = TrajectoryRecord(length=20, sampled=((PolicyVersion(0), 10),), turn_rewards=turn_rewards)
    return BatchEpisode(
        group_id=GroupId(group),
        sample_index=sample,
        reward=sum(turn_rewards),
        stop_reason=StopReason.ENVIRONMENT_DONE,
        payload=PayloadRef(0, "", 0, 0, 0),
        trajectories=(of_one,) * trajectories,
        committed_version=PolicyVersion(0),
        task_id=TaskId("t"),
        weight=1.0,
    )


BATCH = Batch(
    PolicyVersion(0),
    PolicyVersion(0),
    (record(7, 0, (0.0, 1.0)), record(7, 1, (0.5,)), record(3, 0, (1.0, 0.0, 2.0)), record(3, 1, (0.0, 0.0))),
)


def test_a_batch_is_rated_by_episode():
    config = AlgorithmConfig(advantage=GrpoAdvantageConfig(normalize="mean"), credit=EpisodeCreditConfig())
    assert row_advantages(BATCH, config) == [[0.25], [-0.25], [1.5], [-1.5]]


def test_a_batch_is_rated_by_turn():
    config = AlgorithmConfig(advantage=RlooAdvantageConfig(), credit=TurnCreditConfig(discount=0.5))
    # Returns: 0.5, 1 | 0.5 | 1.5, 1, 2 | 0, 0. Second turn of group 7 and third of group 3 have nobody to compare with.
    assert row_advantages(BATCH, config) == [[0.0, 0.0], [0.0], [1.5, 1.0, 0.0], [-1.5, -1.0]]


def test_turns_whose_returns_differ_by_rounding_have_no_advantage():
    rows = (record(7, 0, (0.1, 0.2 + 0.3)), record(7, 1, (0.2 + 0.1, 0.3)))
    batch = Batch(PolicyVersion(0), PolicyVersion(0), (*rows, record(3, 0, (1.0, 2.0)), record(3, 1, (1.0, 2.0))))
    assert rows[0].reward != rows[1].reward
    for advantage in (GrpoAdvantageConfig(), RlooAdvantageConfig()):
        (one, _), (other, _) = row_advantages(batch, AlgorithmConfig(advantage=advantage, credit=TurnCreditConfig()))[:2]
        assert (one, other) == (0.0, 0.0)


def test_turns_without_rewards_are_refused():
    batch = Batch(PolicyVersion(0), PolicyVersion(0), (record(7, 0, ()),))
    with pytest.raises(ValueError, match="sample 0 of group 7 has no turn rewards"):
        row_advantages(batch, AlgorithmConfig(credit=TurnCreditConfig()))
    assert np.isfinite(row_advantages(batch, AlgorithmConfig())).all()


@pytest.mark.parametrize("overlong", [None, OverlongPenaltyConfig(limit=30, ramp=20)])
def test_turns_of_several_trajectories_are_refused(overlong):
    batch = Batch(PolicyVersion(0), PolicyVersion(0), (record(7, 0, (1.0,)), record(7, 1, (0.0,), trajectories=2)))
    config = AlgorithmConfig(credit=TurnCreditConfig(), overlong=overlong)
    with pytest.raises(ValueError, match=r"sample 1 of group 7 has 2 trajectories.*set algorithm.credit.kind=episode"):
        row_advantages(batch if overlong is None else with_overlong_penalty(batch, overlong, config.credit), config)
    assert len(row_advantages(batch, AlgorithmConfig())) == 3
