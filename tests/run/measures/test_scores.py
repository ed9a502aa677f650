"""mean@k and pass@k against brute force."""

from functools import reduce
from itertools import combinations
from operator import add

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.run.measures.scores import counts, difference, pass_at, score


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
    assert msgspec.json.decode(msgspec.json.encode(scores), type=type(scores)) == scores


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), max_size=4), min_size=1, max_size=6).filter(any))
def test_pass_at_k_is_of_the_same_tasks_for_every_k(rewards):
    """So it never falls with k, and those are the tasks of which no episode is missing, where there are any."""
    scores = score(rewards, samples=4, passing=1.0)
    most = max(map(len, rewards))
    whole = [own for own in rewards if len(own) == most]
    assert scores.compared == len(whole)
    assert list(scores.passed) == [k for k in (1, 2, 4) if k <= most]
    for k, found in scores.passed.items():
        expected = [sum(map(any, combinations(own, k))) / len(list(combinations(own, k))) for own in whole]
        assert found.value == pytest.approx(sum(expected) / len(expected))
    values = [each.value for each in scores.passed.values()]
    assert values == sorted(values)


@pytest.mark.parametrize("samples", [1, 3, 6, 7])
def test_of_rewards_that_are_0_or_1_pass_at_1_is_the_mean_to_the_bit(samples):
    rewards = [[float(number * place % 3 == 0) for place in range(1, samples + 1)] for number in range(20)]
    scores = score(rewards, samples, passing=1.0)
    assert scores.passed[1] == scores.mean


def test_rounding_does_not_fail_an_episode():
    third = reduce(add, [0.1] * 10)  # sum is exact, from Python 3.12 on
    assert third < 1.0
    assert score([[third]], samples=1, passing=1.0).passed[1].value == 1.0


def test_nothing_is_scored_of_nothing():
    with pytest.raises(ValueError, match="no episode"):
        score([[], []], samples=1, passing=1.0)


def test_equal_rewards_give_equal_scores_whatever_else_is_scored_beside_them():
    rewards = [[float(number % 3 == 0), float(number % 4 == 0)] for number in range(50)]
    assert score(rewards, 2, 1.0) == score(rewards, 2, 1.0)


def test_a_difference_is_taken_task_by_task():
    hard_and_easy = [[float(number % 2)] for number in range(100)]
    better = [[min(1.0, own + float(number % 10 == 0))] for number, (own,) in enumerate(hard_and_easy)]
    found = difference(better, hard_and_easy, passing=1.0)
    assert found.value == pytest.approx(0.1)
    own = score(hard_and_easy, 1, 1.0).mean
    assert 0.0 < found.high - found.low < 0.8 * (own.high - own.low)
    assert difference([[1.0], []], [[], [1.0]], passing=1.0) is None


def test_models_that_agree_on_few_tasks_may_still_differ():
    alike = [[1.0], [0.0], [1.0], [1.0]] * 5
    found = difference(alike, alike, passing=1.0)
    assert found.value == 0.0
    assert found.low == pytest.approx(-0.168, abs=1e-3), "as many as may fail where 0 of 20 did"
    assert found.high == pytest.approx(0.168, abs=1e-3)
