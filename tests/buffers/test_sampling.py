"""Samplers: what they choose, how often, and with which weights."""

import random
import sys
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.buffers import sampling
from asyncrl.buffers.ready import Ready, ReadyGroup
from asyncrl.buffers.sampling import BadSelection, Selection, make_sampler
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.buffer import (
    BufferConfig,
    CustomSamplerConfig,
    FifoSamplerConfig,
    FreshestSamplerConfig,
    PrioritisedSamplerConfig,
    StratifiedSamplerConfig,
)

SAMPLERS = [
    FifoSamplerConfig(),
    FreshestSamplerConfig(),
    PrioritisedSamplerConfig(),
    PrioritisedSamplerConfig(exponent=3, floor=0.01, staleness_decay=0.5),
    StratifiedSamplerConfig(),
]
WEIGHTS = {"a.jsonl": 5.0, "b.jsonl": 3.0, "c.jsonl": 0.5}


def sampler_of(sampler, max_reuse=1, weights=WEIGHTS):
    return make_sampler(BufferConfig(sampler=sampler, max_reuse=max_reuse), weights)


def ready_of(groups):
    ready = Ready()
    for group in groups:
        ready.add(group)
    return ready


def group(number, source="a.jsonl", oldest=0, newest=None, advantage=0.5, uses=0):
    return ReadyGroup(
        group_id=number,
        source=source,
        oldest_sampled=oldest,
        newest_sampled=oldest if newest is None else newest,
        advantage=advantage,
        uses=uses,
    )


@st.composite
def ready_groups(draw, min_size=1, max_size=12):
    numbers = draw(st.lists(st.integers(0, 1000), min_size=min_size, max_size=max_size, unique=True))
    return [
        group(
            number,
            source=draw(st.sampled_from(["a.jsonl", "b.jsonl", "c.jsonl"])),
            oldest=(oldest := draw(st.integers(0, 8))),
            newest=draw(st.integers(oldest, 8)),
            advantage=draw(st.floats(0, 3)),
            uses=draw(st.integers(0, 1)),
        )
        for number in numbers
    ]


@pytest.mark.parametrize("kind", SAMPLERS, ids=str)
@given(ready_groups(), st.data())
def test_n_different_ready_groups_the_same_for_the_same_seed_and_consumed_with_their_last_use(kind, groups, data):
    n, version, seed = data.draw(st.integers(0, len(groups))), data.draw(st.integers(8, 20)), data.draw(st.integers(0, 99))
    ready = ready_of(groups)
    for max_reuse in (1, 2, 3):
        sampler = sampler_of(kind, max_reuse)
        chosen = sampler.sample(ready, n, version, random.Random(seed))
        assert len(chosen.sampled) == len(set(chosen.sampled)) == len(chosen.weights) == n
        assert set(chosen.sampled) <= ready.keys()
        assert chosen.consumed == tuple(i for i in chosen.sampled if ready[i].uses + 1 >= max_reuse)
        assert all(weight > 0 for weight in chosen.weights)
        in_another_order = ready_of(groups[::-1])
        assert sampler.sample(in_another_order, n, version, random.Random(seed)) == chosen, "depends on the order of arrival"


def test_fifo_takes_the_oldest_and_freshest_the_newest_tokens():
    groups = [group(7, oldest=5), group(3, oldest=1, newest=6), group(9, oldest=2, newest=6), group(4, oldest=0, newest=4)]
    ready = ready_of(groups)
    assert sampler_of(FifoSamplerConfig()).sample(ready, 3, 6, random.Random(0)).sampled == (3, 4, 7)
    assert sampler_of(FreshestSamplerConfig()).sample(ready, 3, 6, random.Random(0)).sampled == (9, 3, 7)


class EveryStart:
    """Stands in for a random generator: gives the starts of a systematic sample that differ, and how likely each is."""

    def __init__(self):
        self.start = self.total = 0

    def randrange(self, total):
        self.total = total
        return self.start


def outcomes(sampler, ready, n, version):
    """Every sample that can come out, with its exact probability.

    The sample changes only where a point crosses the end of an interval; up to the next such start one stands for all.
    """
    probe = EveryStart()
    sampler.sample(ready, n, version, probe)
    sizes = sampling._common_integers(sampling.inclusion_probabilities(sampler.sizes(list(ready.values()), version), n))
    ends, end = {0, probe.total}, 0
    for size in sizes:
        end += n * size
        ends.add(end % probe.total)
    for begin, until in pairwise(sorted(ends)):
        probe.start = begin
        yield sampler.sample(ready, n, version, probe), Fraction(until - begin, probe.total)


@given(ready_groups(min_size=2), st.data())
def test_prioritised_weights_make_the_mean_of_the_sample_an_unbiased_estimate(groups, data):
    n = data.draw(st.integers(1, len(groups)))
    values = {g.group_id: data.draw(st.integers(-5, 5)) for g in groups}
    ready = ready_of(groups)
    options = PrioritisedSamplerConfig(exponent=data.draw(st.sampled_from([0.0, 1.0, 2.0])), staleness_decay=0.7)
    estimate, certain = 0.0, Fraction(0)
    for chosen, probability in outcomes(sampler_of(options), ready, n, 8):
        pairs = zip(chosen.sampled, chosen.weights, strict=True)
        estimate += float(probability) * sum(weight * values[i] for i, weight in pairs) / n
        certain += probability
    assert certain == 1
    # Exact but for the rounding of weights to floats: 2e-16 of terms whose weight times probability is at most 5.
    assert estimate == pytest.approx(sum(values.values()) / len(values), abs=1e-9)


@given(ready_groups(min_size=3, max_size=8), st.data())
def test_prioritised_includes_in_proportion_to_priority_capped_at_one(groups, data):
    n = data.draw(st.integers(1, len(groups) - 1))
    options = PrioritisedSamplerConfig(exponent=2.0, floor=0.1, staleness_decay=0.8)
    included = Counter()
    for chosen, probability in outcomes(sampler_of(options), ready_of(groups), n, 8):
        for group_id in chosen.sampled:
            included[group_id] += probability
    assert sum(included.values()) == n
    priority = {g.group_id: (g.advantage + 0.1) ** 2 * 0.8 ** (8 - g.oldest_sampled) for g in groups}
    below_cap = [i for i in priority if included[i] < 1]
    scale = sum(included[i] for i in below_cap) / sum(priority[i] for i in below_cap) if below_cap else 0
    for i in below_cap:
        # Priorities are rounded to 2**-32 of the largest.
        assert float(included[i]) == pytest.approx(scale * priority[i], rel=1e-6, abs=1e-8)


def test_prioritised_weights_of_equal_groups_are_one_and_extremes_do_not_overflow():
    equal = ready_of([group(i) for i in range(10)])
    assert sampler_of(PrioritisedSamplerConfig()).sample(equal, 4, 3, random.Random(1)).weights == (1.0,) * 4
    extreme = ready_of([group(0, advantage=1e6), group(1, advantage=0), group(2, oldest=-10_000)])
    options = PrioritisedSamplerConfig(exponent=500, floor=1e-9, staleness_decay=1e-9)
    assert len(sampler_of(options).sample(extreme, 2, 10_000, random.Random(1)).sampled) == 2


def test_stratified_gives_each_source_its_share_over_versions_and_never_off_by_one_within_one():
    groups = [group(i, source="abc"[i % 3] + ".jsonl") for i in range(60)]
    sampler, ready, n = sampler_of(StratifiedSamplerConfig()), ready_of(groups), 8
    share = {"a.jsonl": 5 / 8.5, "b.jsonl": 3 / 8.5, "c.jsonl": 0.5 / 8.5}
    so_far, worst = Counter(), 0.0
    for version in range(3000):
        drawn = Counter(ready[i].source for i in sampler.sample(ready, n, version, random.Random(0)).sampled)
        so_far += drawn
        for source in share:
            assert abs(drawn[source] - n * share[source]) < 1
            worst = max(worst, abs(so_far[source] - n * share[source] * (version + 1)))
    # Multiples of the golden ratio have a discrepancy of at most about 0.5 ln(versions) + 1 (Niederreiter 1992, section 3.1).
    assert worst < 5


def test_stratified_takes_the_oldest_of_each_and_fills_in_from_the_others():
    groups = [group(i, source="b.jsonl") for i in range(6)] + [group(6 + i, source="a.jsonl") for i in range(2)]
    assert sampler_of(StratifiedSamplerConfig()).sample(ready_of(groups), 6, 0, random.Random(0)).sampled == (0, 1, 2, 3, 6, 7)
    of_one_source = sampler_of(StratifiedSamplerConfig(), weights={"generated": 1.0}).sample(
        ready_of(groups), 3, 0, random.Random(0)
    )
    assert of_one_source.sampled == (0, 1, 2)


class Newest:
    """A sampler as a user would write it, and what it might get wrong."""

    def __init__(self, mistake=""):
        self.mistake = mistake
        if mistake == "none known":
            raise ValueError(mistake)

    def sample(self, ready, n, version, rng):
        sampled = tuple(sorted(ready, reverse=True)[:n])
        match self.mistake:
            case "type":
                return sampled
            case "raises":
                raise KeyError(7)
            case "size":
                return Selection(sampled[:-1], sampled[:-1], (1.0,) * (n - 1))
            case "twice":
                return Selection(sampled[:1] * n, sampled[:1], (1.0,) * n)
            case "unknown":
                return Selection((*sampled[:-1], 777), sampled[:-1], (1.0,) * n)
            case "stray":
                return Selection(sampled, (*sampled, 0), (1.0,) * n)
            case "kept":
                return Selection(sampled, (), (1.0,) * n)
            case "weights":
                return Selection(sampled, sampled, (float("nan"),) * n)
        return Selection(sampled, sampled, (1.0,) * n)


class NoSampler:
    pass


@pytest.fixture
def plug_in(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_sampler", sys.modules[__name__])


@pytest.mark.usefixtures("plug_in")
def test_a_sampler_of_ones_own():
    chosen = sampler_of(CustomSamplerConfig(name="my_sampler:Newest")).sample(
        ready_of(map(group, range(5))), 2, 0, random.Random(0)
    )
    assert chosen.sampled == (4, 3)


@pytest.mark.usefixtures("plug_in")
@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("type", "tuple, not a Selection"),
        ("raises", "sample raised KeyError: 7; correct that class"),
        ("size", "2 different groups were wanted, 1 were sampled"),
        ("twice", "2 were sampled, 1 of them different"),
        ("unknown", r"groups \[777\] were sampled and are not ready"),
        ("stray", r"groups \[0\] were consumed and not sampled"),
        ("kept", r"groups \[3, 4\] would be kept beyond buffer.max_reuse 1"),
        ("weights", "weights must be 2 finite numbers"),
    ],
)
def test_a_sampler_of_ones_own_that_is_wrong(mistake, told):
    sampler = sampler_of(CustomSamplerConfig(name="my_sampler:Newest", options={"mistake": mistake}))
    with pytest.raises(BadSelection, match=told):
        sampler.sample(ready_of(map(group, range(5))), 2, 0, random.Random(0))


@pytest.mark.usefixtures("plug_in")
@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("no_such_module:Newest", {}, "there is no module 'no_such_module' on the path or in"),
        ("my_sampler:Nowest", {}, "'Nowest' of module my_sampler does not exist"),
        ("my_sampler:NoSampler", {}, "has no method `sample`"),
        ("my_sampler", {}, "write it as `module:Class`"),
        ("my_sampler:Newest", {"mistakes": 1}, r"refuses \{'mistakes': 1\}: TypeError"),
        ("my_sampler:Newest", {"mistake": "none known"}, "ValueError: none known"),
    ],
)
def test_a_sampler_that_cannot_be_loaded_is_refused_with_the_remedy(name, options, told):
    with pytest.raises(RecipeError, match=told):
        sampler_of(CustomSamplerConfig(name=name, options=options))
