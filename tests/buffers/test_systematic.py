"""Systematic sampling: exact, by going through every start."""

from fractions import Fraction
from math import ceil, floor

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.buffers.sampling import inclusion_probabilities, systematic_hits

sizes_and_n = st.lists(st.integers(1, 12), min_size=1, max_size=7).flatmap(
    lambda sizes: st.tuples(st.just(sizes), st.integers(1, len(sizes)))
)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any), st.integers(0, 9))
def test_every_start_gives_n_hits_each_share_rounded_and_all_starts_exactly_the_shares(sizes, n):
    total = sum(sizes)
    drawn = [systematic_hits(sizes, n, start) for start in range(total)]
    for hits in drawn:
        assert sum(hits) == n
        assert all(floor(Fraction(n * s, total)) <= h <= ceil(Fraction(n * s, total)) for h, s in zip(hits, sizes, strict=True))
    assert [sum(hits) for hits in zip(*drawn, strict=True)] == [n * size for size in sizes]


@given(sizes_and_n)
def test_probabilities_sum_to_n_are_capped_and_proportional_below_the_cap(drawn):
    sizes, n = drawn
    probabilities = inclusion_probabilities(sizes, n)
    assert sum(probabilities) == n
    assert all(0 < p <= 1 for p in probabilities)
    ratios = {p / size for p, size in zip(probabilities, sizes, strict=True) if p < 1}
    assert len(ratios) <= 1
    for ratio in ratios:
        assert all(size * ratio >= 1 for p, size in zip(probabilities, sizes, strict=True) if p == 1), "capped without need"


def test_one_giant_is_certain_and_the_others_share_the_rest():
    assert inclusion_probabilities([100, 1, 1, 2], 2) == [1, Fraction(1, 4), Fraction(1, 4), Fraction(1, 2)]
