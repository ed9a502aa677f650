import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.run.report.figures import SIZE, Curve, chart, histogram, number, timeline
from asyncrl.run.tracking.metric_history import Series

values = st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=700)


def points(text):
    return [tuple(map(int, pair.split(","))) for pair in text.split()]


@given(values)
def test_a_curve_stays_in_its_box_goes_right_and_has_a_bounded_size(drawn):
    series = Series(tuple(range(len(drawn))), tuple(drawn))
    made = chart("c", [Curve.of("a", series, 9)], (0, max(len(drawn) - 1, 1)), points=100)
    drawn_points = points(made.lines[0].points)
    assert len(drawn_points) <= 100 + 1
    assert all(0 <= x <= SIZE and 0 <= y <= SIZE for x, y in drawn_points)
    assert [x for x, _ in drawn_points] == sorted(x for x, _ in drawn_points)
    assert made.low <= min(drawn) + 1e-300  # what is smaller is drawn as 0
    assert max(drawn) - 1e-300 <= made.high
    assert all(-0.1 <= tick.at <= 100.1 for tick in made.ticks)
    assert made.lines[0].colour == 1


@pytest.mark.parametrize("ends", [(5e-324, 5e-324), (0.0, 5e-324), (-5e-324, 1.0), (-1.7e308, 1.7e308), (1.7e308, 1.7e308)])
def test_a_curve_at_the_ends_of_what_a_number_can_be_is_drawn(ends):
    made = chart("c", [Curve.of("a", Series((0, 1), ends), 0)], (0, 1))
    assert all(0 <= y <= SIZE for _, y in points(made.lines[0].points))
    assert np.isfinite([made.low, made.high, *(tick.at for tick in made.ticks)]).all()
    assert len(made.ticks) >= 2


def test_a_curve_is_where_its_values_are():
    made = chart("c", [Curve.of("a", Series((0, 5, 10), (0.0, 1.0, 0.5)), 0)], (0, 10))
    top = SIZE - SIZE / 1.04
    assert points(made.lines[0].points) == [(0, SIZE), (SIZE // 2, round(top)), (SIZE, round(SIZE - SIZE / 2.08))]
    assert [tick.label for tick in made.ticks] == ["0", "0.25", "0.5", "0.75", "1"]


def test_few_points_have_dots_and_many_their_running_means():
    few = chart("c", [Curve.of("a", Series(tuple(range(9)), tuple(map(float, range(9)))), 0)], (0, 8)).lines[0]
    assert (few.dots.count("M"), few.smooth) == (9, "")
    noisy = [float(step + 10 * (-1) ** step) for step in range(200)]
    many = chart("c", [Curve.of("a", Series(tuple(range(200)), tuple(noisy)), 0)], (0, 199))
    assert many.lines[0].dots == ""
    heights = [many.low + (SIZE - y) / SIZE * (many.high - many.low) for _, y in points(many.lines[0].smooth)]
    assert heights[0] == pytest.approx(noisy[0], abs=0.1)
    for step in range(5, 195):  # a window of 11 values, of which one more is high or low
        assert heights[step] == pytest.approx(step + 10 * (-1) ** (step + 1) / 11, abs=0.1)


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=300))
def test_bands_that_add_up_fill_the_whole(drawn):
    shares = np.array(drawn) + 0.01
    shares /= shares.sum(axis=1, keepdims=True)
    steps = tuple(range(len(drawn)))
    parts = {name: Series(steps, tuple(shares[:, i])) for i, name in enumerate(("a", "b", "waiting"))}
    made = timeline("t", parts, (0, max(len(drawn) - 1, 1)), waits=["waiting"], points=50)
    assert [band.waits for band in made.bands] == [False, False, True]
    at_top = points(made.bands[-1].points)
    assert all(y <= 1 for _, y in at_top[: len(at_top) // 2])
    mille = [list(map(int, band.shares.split(","))) for band in made.bands]
    assert all(abs(sum(each) - 1000) <= 2 for each in zip(*mille, strict=True))
    assert len(made.steps.split(",")) == len(mille[0]) <= 50


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=200))
def test_a_histogram_counts_every_value_once(drawn):
    made = histogram("h", np.array(drawn, np.float64), unit="tokens")
    counts = [int(bar.label.rpartition(": ")[2].replace(",", "")) for bar in made.bars]
    assert sum(counts) == len(drawn)
    assert max(bar.height for bar in made.bars) == 100
    assert len(made.bars) <= 25


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.0, "0"), (0.98, "0.98"), (0.012345, "0.0123"), (12.0, "12"), (1234.0, "1,234"), (45_600.0, "45.6k"), (3.2e-7, "3.2e-07")],
)
def test_numbers_are_short(value, told):
    assert number(value) == told
    assert number(-value) == ("0" if value == 0 else f"-{told}")
