"""The staleness contract: pace, bound, what must be trained now, and that the last always fits."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.buffers.staleness import Load, StalenessPolicy
from asyncrl.core.recipe.buffer import BufferConfig
from asyncrl.core.recipe.schema import BatchConfig


def make_policy(groups=2, **buffer):
    return StalenessPolicy(BufferConfig(**buffer), BatchConfig(groups_per_step=groups))


def load(**values):
    idle = {
        "depth": 2,
        "waiting": 0,
        "failed": 0,
        "unpublished_batches": 0,
        "returning": 0,
        "supply": 0,
        "wanted": 1000,
        "payload_bytes": 0,
    }
    return Load(**{**idle, **values})


@pytest.mark.parametrize(
    ("busy", "room"),
    [
        ({}, 6),
        ({"waiting": 4, "supply": 4}, 2),
        ({"waiting": 4, "supply": 4, "unpublished_batches": 2}, 0),
        ({"waiting": 4, "supply": 4, "unpublished_batches": 4}, 0),
        ({"wanted": 0}, 0),
        ({"wanted": 0, "failed": 1}, 0),
        ({"wanted": 4}, 4),
        ({"wanted": 4, "waiting": 3, "supply": 3}, 1),
        ({"wanted": 4, "waiting": 4, "supply": 4}, 0),
        ({"wanted": 4, "waiting": 1, "supply": 4}, 1),
        ({"wanted": 4, "waiting": 1, "returning": 1, "supply": 4}, 0),
        ({"wanted": 2, "waiting": 3, "supply": 3, "failed": 1}, 1),
        ({"payload_bytes": 1_000_000}, 2),
        ({"payload_bytes": 1_000_000, "waiting": 2, "supply": 2}, 0),
        ({"payload_bytes": 1_000_000, "waiting": 2, "supply": 2, "failed": 1}, 1),
        ({"payload_bytes": 999_999, "waiting": 2, "supply": 2}, 4),
    ],
)
def test_room(busy, room):
    assert make_policy(capacity_mb=1).room(load(**busy)) == room


def test_each_new_group_is_good_for_several_trainings():
    assert make_policy(max_reuse=3).room(load(depth=4, wanted=10, waiting=3, supply=3)) == 3


@pytest.mark.parametrize(("on_stale", "deciding", "hope"), [("mask", 5, None), ("drop", 3, 6), ("wait", 3, 6)])
def test_what_decides_about_the_end(on_stale, deciding, hope):
    policy = make_policy(max_staleness=4, on_stale=on_stale)
    assert policy.expiry_version(3, 5) == deciding
    assert policy.expired_unfinished_below(10) == hope
    assert policy.oldest_version(10) == 6


@pytest.mark.parametrize(
    ("version", "live", "demands"),
    [
        (4, {}, []),
        (4, {4: 4}, []),
        (4, {4: 6}, [(4, 2)]),
        (4, {2: 2}, [(2, 2)]),
        (4, {2: 1, 3: 1}, [(2, 1)]),
        (4, {2: 1, 3: 2}, [(2, 1)]),
        (4, {2: 1, 3: 3}, [(2, 1), (3, 2)]),
        (4, {3: 3, 4: 3}, [(3, 1), (4, 2)]),
    ],
)
def test_demands(version, live, demands):
    assert make_policy(groups=2, max_staleness=2, on_stale="wait").demands(version, live) == demands
    assert make_policy(groups=2, max_staleness=2, on_stale="mask").demands(version, live) == []


@given(seed=st.integers(0, 2**32), depth=st.integers(0, 3), slack=st.integers(0, 3), groups=st.integers(1, 4))
def test_what_must_be_trained_always_fits_and_meeting_it_is_enough(seed, depth, slack, groups):
    """Groups are issued by a pace that may change at any time, and trained in any order that meets the demands: none ever crosses
    the bound."""
    rng = random.Random(seed)
    bound = depth + slack
    policy = make_policy(groups, max_staleness=bound, on_stale="wait")
    births, clock, taken = [], 0, 0
    for _ in range(60):
        unpublished_batches = groups * (taken - clock)
        depth = rng.choice([depth] * 4 + [rng.randint(0, bound)])
        room = policy.room(load(depth=depth, waiting=len(births), supply=len(births), unpublished_batches=unpublished_batches))
        births += [clock] * rng.randint(0, room)
        demands = policy.demands(taken, {b: births.count(b) for b in births})
        assert max([n for _, n in demands], default=0) <= groups
        if taken <= clock + 1 and len(births) >= groups and rng.random() < 0.8:
            batch = []
            births.sort()
            for birth, n in demands:
                while len(batch) < n:
                    batch.append(births.pop(rng.randrange(sum(b <= birth for b in births))))
            while len(batch) < groups:
                batch.append(births.pop(rng.randrange(len(births))))
            assert all(taken - birth <= bound for birth in batch)
            taken += 1
        elif clock < taken:
            clock += 1
