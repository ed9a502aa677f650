"""mean@k and pass@k against brute force, and intervals against closed forms and repeated experiments."""

from itertools import combinations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.run.scores import Estimate, counts, difference, intervals, pass_at, score


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_all_subsets_with_a_pass(drawn):
    episodes, passed, k = drawn
    outcomes = [index < passed for index in range(episodes)]
    subsets = list(combinations(outcomes, k))
    assert pass_at(k, episodes, passed) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_of_many_episodes_does_not_overflow():
    assert pass_at(1, 100_000, 25_000) == pytest.approx(0.25)
    assert pass_at(1000, 100_000, 1) == pytest.approx(0.01)


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_is_not_made_up(k):
    with pytest.raises(ValueError, match=f"pass@{k} cannot be estimated from 4 episodes"):
        pass_at(k, 4, 1)


@pytest.mark.parametrize(("samples", "ks"), [(1, [1]), (2, [1, 2]), (8, [1, 2, 4, 8]), (6, [1, 2, 4, 6])])
def test_the_ks_that_are_told(samples, ks):
    assert list(counts(samples)) == ks


def test_tasks_weigh_the_same_however_many_of_their_episodes_were_lost():
    scores = score([[1.0, 0.0, 0.0, 1.0], [1.0], [], [0.0, 0.0, 0.0]], samples=4, passing=1.0)
    assert (scores.tasks, scores.episodes) == (3, 8)
    assert scores.mean.value == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert scores.passed[1].value == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert scores.passed[2].value == pytest.approx((5 / 6 + 0.0) / 2), "of the tasks that have two episodes"
    assert scores.passed[4].value == 1.0
    assert msgspec.json.decode(msgspec.json.encode(scores), type=type(scores)) == scores


def test_a_pass_k_that_no_task_allows_is_left_out():
    assert list(score([[1.0, 0.5], [0.0]], samples=4, passing=0.5).passed) == [1, 2]


def test_rounding_does_not_fail_an_episode():
    third = sum([0.1] * 10)
    assert third < 1.0
    assert score([[third]], samples=1, passing=1.0).passed[1].value == 1.0


def test_nothing_is_scored_of_nothing():
    with pytest.raises(ValueError, match="no episode"):
        score([[], []], samples=1, passing=1.0)


def test_an_interval_is_that_of_the_central_limit_theorem_where_that_holds():
    values = np.random.default_rng(1).normal(size=(400, 1))
    (found,) = intervals(values)
    half = 1.96 * values.std(ddof=1) / 20
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == (pytest.approx(found.value - half, abs=0.02), pytest.approx(found.value + half, abs=0.02))


def test_intervals_hold_the_truth_as_often_as_they_say():
    generator = np.random.default_rng(2)
    hits = sum(found.low <= 0.3 <= found.high for found in intervals_of(generator, experiments=400, tasks=100, share=0.3))
    assert 0.91 < hits / 400 < 0.98


def intervals_of(generator, experiments: int, tasks: int, share: float) -> list[Estimate]:
    return intervals((generator.random((tasks, experiments)) < share).astype(float))


def test_equal_rewards_give_equal_scores_whatever_else_is_scored_beside_them():
    rewards = [[float(number % 3 == 0), float(number % 4 == 0)] for number in range(50)]
    assert score(rewards, 2, 1.0) == score(rewards, 2, 1.0)


def test_a_difference_is_taken_task_by_task():
    hard_and_easy = [[float(number % 2)] for number in range(100)]
    better = [[own + 0.1] for (own,) in hard_and_easy]
    found = difference(better, hard_and_easy)
    assert found == Estimate(pytest.approx(0.1), pytest.approx(0.1), pytest.approx(0.1))
    own = score(hard_and_easy, 1, 1.0).mean
    assert own.high - own.low > 0.15
    assert difference([[1.0], []], [[], [1.0]]) is None
