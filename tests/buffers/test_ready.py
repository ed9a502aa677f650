"""Ready groups oldest first, and buckets by version, beside the plainest thing that could be right."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.buffers.index import VersionBuckets
from asyncrl.buffers.ready import Ready, ReadyGroup, mean_absolute_advantage


def group(group_id):
    return ReadyGroup(group_id, "s", 0, 0, 0.0, 0)


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "oldest", "without"]), st.integers(0, 12)), max_size=200))
def test_ready_is_a_sorted_mapping(operations):
    ready, model = Ready(), set()
    for what, n in operations:
        if what == "add" and n not in model:
            ready.add(group(n))
            model.add(n)
        elif what == "remove" and n in model:
            ready.remove(n)
            model.remove(n)
        elif what == "oldest":
            assert ready.oldest(n) == sorted(model)[:n]
        elif what == "without":
            lacking = sorted(model)[n : n + 2]
            with ready.without(lacking) as rest:
                assert list(rest) == rest.oldest(99) == sorted(model - set(lacking))
        assert list(ready) == sorted(model)
        assert (len(ready), ready.oldest(1)) == (len(model), sorted(model)[:1])
        assert len(ready._ids) <= 2 * len(model) + 65, "what is gone does not pile up"


def test_what_was_taken_out_for_a_sampler_that_fails_comes_back():
    ready = Ready()
    ready.add(group(1))
    with pytest.raises(RuntimeError), ready.without([1]):
        raise RuntimeError
    assert list(ready) == [1]


def test_groups_that_leave_young_first_do_not_pile_up():
    ready = Ready()
    ready.add(group(0))
    for n in range(1, 10_000):
        ready.add(group(n))
        ready.remove(n)
    assert len(ready._ids) < 100


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12)), max_size=100))
def test_buckets(operations):
    buckets, where = VersionBuckets(), {}
    for version, n in operations:
        if n in where:
            buckets.remove(where.pop(n), n)
        else:
            buckets.add(version, n)
            where[n] = version
        assert {v: buckets.of(v) for v in buckets} == {
            v: sorted(g for g in where if where[g] == v) for v in sorted(set(where.values()))
        }
        assert next(iter(buckets), None) == min(where.values(), default=None)
        below = sorted((v, g) for g, v in where.items() if v < version)
        assert buckets.below(version) == [g for _, g in below]
        assert (buckets.count_below(version), buckets.has_below(version)) == (len(below), bool(below))
        assert buckets.count(version) == len(buckets.of(version))
        assert len(buckets._versions) <= 2 * len(set(where.values())) + 9


@given(st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=9))
def test_mean_absolute_advantage(rewards):
    deviation = statistics.pstdev(rewards)
    expected = statistics.fmean(abs(r - statistics.fmean(rewards)) for r in rewards) / deviation if deviation else 0.0
    assert mean_absolute_advantage(rewards) == pytest.approx(expected)


def test_rewards_closer_than_floats_can_square_count_as_equal():
    assert mean_absolute_advantage([0.0, 1e-200]) == 0.0


def test_rewards_that_differ_by_rounding_have_no_advantage():
    assert mean_absolute_advantage([0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1]) == 0.0
