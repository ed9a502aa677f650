"""Extents against a set of integers."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.buffers.journal.extents import Extents

SPAN = 40
pieces = st.lists(st.tuples(st.integers(0, SPAN - 8), st.integers(1, 8)), max_size=15)


@given(pieces)
def test_they_are_the_set_of_all_bytes_added(pieces):
    extents, model = Extents(), set()
    for start, size in pieces:
        merged = range(*extents.add(start, start + size))
        model |= set(range(start, start + size))
        assert set(merged) <= model, "only what was added"
        assert merged.start - 1 not in model, "nothing is left to merge before it"
        assert merged.stop not in model, "nor behind it"
        assert merged.start <= start < start + size <= merged.stop
    listed = list(extents)
    assert {byte for extent in listed for byte in range(*extent)} == model
    assert all(end < following for (_, end), (following, _) in pairwise(listed))
    assert {byte for gap in extents.gaps(SPAN) for byte in range(*gap)} == set(range(SPAN)) - model


@given(pieces, st.integers(0, SPAN), st.integers(0, SPAN))
def test_covers_says_whether_all_bytes_are_in(pieces, start, end):
    extents, model = Extents(), set()
    for first, size in pieces:
        extents.add(first, first + size)
        model |= set(range(first, first + size))
    assert extents.covers(start, end) == (set(range(start, end)) <= model)
