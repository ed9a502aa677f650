import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.buffers.inspection import inspect
from asyncrl.buffers.state import Lengths
from asyncrl.core.errors import FailureKind
from asyncrl.core.measures.buffer_statistics import BufferStatistics, GroupState, HeldGroups, LedgerCounts, StaleTokens


def statistics(**changed):
    values = {
        "version": 7,
        "ledger": LedgerCounts(3, 1, 1, 0, 1, 0, 0, 0, {}),
        "payload_bytes": 100,
        "kept_batches": 1,
        "kept_bytes": 50,
        "held": (HeldGroups(4, GroupState.RUNNING, 1, 900.0), HeldGroups(7, GroupState.COMMITTED, 1, 1001.0)),
        "lengths_issued": (),
        "lengths_trained": (),
        "late_samples": 0,
        "stale_tokens": StaleTokens(),
        "lost_trajectories": 0,
        "failures": dict.fromkeys(FailureKind, 0),
        "filtered_tasks": (),
        "skipped_rows": {"a": 2, "b": 0},
    }
    return BufferStatistics(**{**values, **changed})


def lengths(*tokens):
    counted = Lengths()
    for length in tokens:
        counted.add(length)
    return tuple(counted.counts)


def test_ages_and_staleness_are_as_of_now():
    report = inspect(statistics(), {"a": 2, "b": 1}, now=1000.0)
    assert [(held.staleness, held.age_s) for held in report.held] == [(3, 100.0), (0, 0.0)]


def test_sources_are_told_with_what_was_drawn_and_skipped():
    report = inspect(statistics(), {"a": 2, "b": 1}, now=0)
    assert [(source.name, source.drawn, source.skipped) for source in report.sources] == [("a", 2, 2), ("b", 1, 0)]


def test_a_bias_towards_short_rows_is_in_the_shares():
    issued, trained = [10] * 50 + [1000] * 50, [10] * 50 + [1000] * 10
    report = inspect(statistics(lengths_issued=lengths(*issued), lengths_trained=lengths(*trained)), {}, now=0)
    short, long = report.lengths[0], report.lengths[-1]
    assert (short.shortest, short.longest, long.shortest, long.longest) == (8, 15, 512, 1023)
    assert (short.share_issued, long.share_issued) == (0.5, 0.5)
    assert (short.share_trained, long.share_trained) == (pytest.approx(5 / 6), pytest.approx(1 / 6))


@given(st.lists(st.tuples(st.integers(1, 100_000), st.booleans()), max_size=50))
def test_every_row_is_in_the_one_bin_it_fits(rows):
    issued, trained = [length for length, _ in rows], [length for length, was_trained in rows if was_trained]
    report = inspect(statistics(lengths_issued=lengths(*issued), lengths_trained=lengths(*trained)), {}, now=0)
    for row in report.lengths:
        assert row.issued == sum(row.shortest <= length <= row.longest for length in issued)
        assert row.trained == sum(row.shortest <= length <= row.longest for length in trained)
    assert sum(row.issued for row in report.lengths) == len(issued)
    assert [row.shortest for row in report.lengths[1:]] == [row.longest + 1 for row in report.lengths[:-1]]
