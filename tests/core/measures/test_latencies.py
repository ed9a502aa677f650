"""Percentiles of the whole are read from histograms of its parts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.measures.counters import snapshot
from asyncrl.core.measures.latencies import Latencies

DURATIONS = st.lists(st.floats(2e-5, 3e4), min_size=1, max_size=60)


def counted(*durations: float) -> Latencies:
    latencies = Latencies()
    for seconds in durations:
        latencies.add(seconds)
    return latencies


@given(DURATIONS, DURATIONS, st.sampled_from([0.5, 0.99, 1.0]))
def test_a_percentile_of_two_places_is_that_of_all_their_durations(here, there, share):
    whole = counted(*here) + counted(*there)
    exact = np.quantile([*here, *there], share, method="inverted_cdf")
    assert whole.percentile(share) == pytest.approx(exact, rel=2 ** (1 / 8) - 1 + 1e-9)
    assert whole == counted(*here, *there)


@given(DURATIONS, DURATIONS)
def test_what_was_counted_since_is_what_it_grew_by(before, since):
    latencies = counted(*before)
    then = snapshot(latencies)
    for seconds in since:
        latencies.add(seconds)
    growth = latencies - then
    assert {bucket: count for bucket, count in growth.buckets.items() if count} == counted(*since).buckets
    assert growth.percentile(0.5) == counted(*since).percentile(0.5)


def test_the_shortest_and_the_longest_have_a_bucket():
    assert counted(0.0).percentile(0.5) == pytest.approx(1e-5, rel=0.1)
    assert counted(1e9).percentile(0.5) > 30_000
    with pytest.raises(ValueError, match="no duration was counted"):
        Latencies().percentile(0.5)
