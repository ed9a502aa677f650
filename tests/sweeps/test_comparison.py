"""Which differences are larger than the spread of seeds: against scipy's own test, and where there is little to say."""

import math

import msgspec
import numpy as np
import pytest
from scipy.stats import ttest_rel, tukey_hsd

from asyncrl.core.measures.time_split import IdleShares
from asyncrl.run.measures.summary import EvaluationEnds, RewardEnds, StalenessTotals, Status, Summary
from asyncrl.sweeps.comparison import ComparedMeasure, compare, sentences, with_interval


def summary(evaluation: float | None, speed: float = 10.0, staleness: float = 1.0) -> Summary:
    return Summary(
        status=Status.COMPLETED,
        training_s=100.0,
        evaluation=EvaluationEnds(0.1, evaluation),
        reward=RewardEnds(0.1, 0.2),
        staleness=StalenessTotals(staleness, 2, 4),
        trajectories_per_s=speed,
    )


def settings(*evaluations: list[float]) -> list[dict[int, Summary]]:
    return [{seed: summary(each) for seed, each in enumerate(values)} for values in evaluations]


def named(compared: tuple[ComparedMeasure, ...], name: str) -> ComparedMeasure:
    return next(each for each in compared if each.measure.name == name)


@pytest.mark.parametrize("sizes", [(2, 2), (2, 5), (3, 3, 3), (4, 2, 3, 2)])
def test_differences_of_settings_without_a_common_seed_are_those_of_tukeys_test(sizes):
    random = np.random.default_rng(sum(sizes))
    groups = [random.normal(0.3 * place, 0.1, size).tolist() for place, size in enumerate(sizes)]
    apart = [{100 * place + seed: summary(each) for seed, each in enumerate(values)} for place, values in enumerate(groups)]
    found = named(compare(apart), "final evaluation")
    interval = tukey_hsd(*groups).confidence_interval(0.95)
    expected = {(i, j) for i in range(len(groups)) for j in range(len(groups)) if interval.low[i, j] > 1e-9}
    assert {(each.larger, each.smaller) for each in found.differences} == expected
    for each in found.differences:
        assert each.size.low == pytest.approx(interval.low[each.larger, each.smaller], abs=1e-9)
        assert each.size.high == pytest.approx(interval.high[each.larger, each.smaller], abs=1e-9)


def test_two_settings_are_compared_as_by_a_paired_t_test():
    random = np.random.default_rng(5)
    seeds = random.normal(0.5, 0.3, 6)  # what the seed does to both is much larger than what tells the settings apart
    one, other = (seeds + random.normal(0.1 * place, 0.03, 6) for place in range(2))
    (difference,) = named(compare(settings(one.tolist(), other.tolist())), "final evaluation").differences
    interval = ttest_rel(other, one).confidence_interval(0.95)
    assert (difference.larger, difference.smaller) == (1, 0)
    assert (difference.size.low, difference.size.high) == pytest.approx((interval.low, interval.high))


def test_what_a_seed_does_to_all_settings_hides_no_difference():
    """Two learning rates at two bounds of staleness, with two seeds: figures of a sweep."""
    found = named(compare(settings([0.587, 0.817], [0.820, 0.987], [0.600, 0.783], [0.770, 0.967])), "final evaluation")
    assert {(each.larger, each.smaller) for each in found.differences} == {(1, 0), (1, 2), (3, 0), (3, 2)}


def test_a_seed_that_is_missing_in_one_setting_is_allowed_for():
    """The last seed is a good one. The second setting has not got it, and is better at each of the others all the same."""
    found = named(compare(settings([0.10, 0.12, 0.15, 0.90], [0.20, 0.22, 0.25])), "final evaluation")
    (difference,) = found.differences
    assert (difference.larger, difference.smaller) == (1, 0)
    assert difference.size.value == pytest.approx(0.10)


def test_settings_that_no_seed_joins_are_compared_by_their_means():
    """Two settings have one half of the seeds, two the other: between the halves, what a seed does cannot be told apart."""
    random = np.random.default_rng(3)
    figures = [place + random.normal(0.0, 0.05, 3) for place in range(4)]
    halves = [{seed + 100 * (place // 2): summary(each) for seed, each in enumerate(figures[place])} for place in range(4)]
    found = {(each.larger, each.smaller): each.size for each in named(compare(halves), "final evaluation").differences}
    interval = tukey_hsd(*figures).confidence_interval(0.95)
    assert found.keys() == {(larger, smaller) for larger in range(4) for smaller in range(larger)}
    for larger, smaller in ((2, 0), (3, 1)):
        ends = interval.low[larger, smaller], interval.high[larger, smaller]
        assert (found[larger, smaller].low, found[larger, smaller].high) == pytest.approx(ends)
        assert found[larger, smaller].value == pytest.approx(figures[larger].mean() - figures[smaller].mean())


def test_equal_settings_differ_in_one_sweep_of_twenty():
    random = np.random.default_rng(0)
    differ = 0
    for _ in range(400):
        found = compare(settings(*random.normal(0.5, 0.1, (4, 3)).tolist()))
        differ += bool(named(found, "final evaluation").differences)
    assert 6 <= differ <= 36  # 20 are expected, with a standard deviation of 4.4


def test_rates_are_compared_by_factors():
    slow = {seed: summary(0.5, speed) for seed, speed in enumerate((10.0, 10.5, 9.5))}
    fast = {seed: summary(0.5, speed) for seed, speed in enumerate((20.0, 21.0, 19.0))}
    (difference,) = named(compare([slow, fast]), "trajectories a second").differences
    assert (difference.larger, difference.smaller) == (1, 0)
    assert difference.size.value == pytest.approx(2.0)
    assert 1.0 < difference.size.low < 2.0 < difference.size.high
    told = sentences(compare([slow, fast]), ["one engine", "two engines"])
    assert any(each.startswith("trajectories a second: two engines has 2 times (") for each in told)
    assert "final evaluation: no difference is larger than the spread of seeds" in told


def test_no_interval_goes_beyond_what_a_figure_can_be():
    def run(age: float, idle: float) -> Summary:
        return msgspec.structs.replace(summary(0.5, staleness=age), idle=IdleShares(generators=idle, learner=1 - idle))

    found = compare([{0: run(0.0, 0.01), 1: run(2.0, 0.9)}, {0: run(0.3, 0.02), 1: run(1.0, 0.99)}])
    for name, least, most in (("staleness, mean", 0.0, math.inf), ("engines idle", 0.0, 1.0), ("learner idle", 0.0, 1.0)):
        for spread in named(found, name).spreads:
            assert spread is not None
            low, high = spread.interval
            assert least <= low <= spread.mean <= high <= most
    idle = {seed: run(1.0, 0.01 * seed) for seed in range(2)}, {seed: run(1.0, 1 - 0.01 * seed) for seed in range(2)}
    (difference,) = named(compare(idle), "engines idle").differences
    assert difference.size.high <= 1.0


def test_one_seed_each_says_nothing_of_differences():
    found = named(compare(settings([0.1], [0.9])), "final evaluation")
    assert not found.judged
    assert [with_interval(found.measure, each) for each in found.spreads] == ["0.1", "0.9"]
    assert sentences([found], ["a", "b"]) == []


def test_a_setting_with_one_seed_is_not_compared():
    found = named(compare(settings([0.10, 0.11, 0.12], [0.9], [0.5, 0.6])), "final evaluation")
    assert [(each.larger, each.smaller) for each in found.differences] == [(2, 0)]
    assert found.spreads[1].interval is None


def test_what_a_setting_fixes_does_not_narrow_the_spread_of_others():
    fixed, some, others = [0.0] * 5, [1.5, 1.6], [1.4, 1.55]
    found = named(compare(settings(fixed, some, others)), "final evaluation")
    assert {(each.larger, each.smaller) for each in found.differences} == {(1, 0), (2, 0)}
    alone = named(compare(settings(some, others)), "final evaluation")
    assert found.spreads[1] == alone.spreads[0]
    assert found.spreads[0].interval == (0.0, 0.0)


def test_settings_without_completed_runs_and_figures_that_no_run_has_are_left_out():
    found = compare([{}, {0: summary(None), 1: summary(None)}])
    assert "final evaluation" not in [each.measure.name for each in found]
    speed = named(found, "trajectories a second")
    assert (speed.spreads[0], speed.judged) == (None, False)
    assert compare([{}, {}]) == ()


def test_seeds_that_do_not_differ_at_all():
    found = named(compare(settings([0.5, 0.5], [0.5, 0.5], [0.7, 0.7])), "final evaluation")
    assert [(each.larger, each.smaller) for each in found.differences] == [(2, 0), (2, 1)]
    assert all(math.isclose(each.size.low, 0.2) for each in found.differences)
