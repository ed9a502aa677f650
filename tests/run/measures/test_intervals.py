"""Intervals against exact ones of another program, against Student's, and against how often they hold the truth."""

import numpy as np
import pytest
from scipy import stats

from asyncrl.run.measures.intervals import difference_interval, mean_interval


@pytest.mark.parametrize("tasks", [1, 2, 10, 20, 300])
def test_of_yes_and_no_it_is_the_exact_interval(tasks):
    for passed in {0, 1, tasks // 3, tasks - 1, tasks}:
        found = mean_interval(np.array([1.0] * passed + [0.0] * (tasks - passed)), 0.0, 1.0)
        exact = stats.binomtest(passed, tasks).proportion_ci(method="exact")
        assert (found.low, found.high) == (pytest.approx(exact.low), pytest.approx(exact.high))
        assert found.value == pytest.approx(passed / tasks)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("tasks", [5, 10, 40])
def test_one_sample_of_each_task_holds_the_truth_at_least_as_often_as_it_says(tasks, share):
    """Summed over every outcome, by its probability."""
    held = 0.0
    for passed in range(tasks + 1):
        found = mean_interval(np.array([1.0] * passed + [0.0] * (tasks - passed)), 0.0, 1.0)
        held += stats.binom.pmf(passed, tasks, share) * (found.low <= share <= found.high)
    assert held >= 0.95


def test_far_from_the_ends_it_is_student_s():
    values = np.random.default_rng(1).normal(size=400)
    found = mean_interval(values, values.min(), values.max())
    low, high = stats.t.interval(0.95, 399, loc=values.mean(), scale=stats.sem(values))
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == (pytest.approx(low, abs=0.005), pytest.approx(high, abs=0.005))


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e15])
def test_it_moves_and_stretches_with_the_rewards(scale):
    values = np.array([0.0, 0.25, 1.0, 1.0, 0.5])
    plain, other = mean_interval(values, 0.0, 1.0), mean_interval(scale * (values - 0.5), -0.5 * scale, 0.5 * scale)
    for one, moved in zip((plain.value, plain.low, plain.high), (other.value, other.low, other.high), strict=True):
        assert moved == pytest.approx(scale * (one - 0.5), abs=1e-9 * scale)


RATES = {
    "alike, hard to fail": lambda random, tasks: np.full(tasks, 0.9),
    "easy": lambda random, tasks: random.beta(9, 1, tasks),
    "hard": lambda random, tasks: random.beta(0.3, 3, tasks),
    "easy or hard": lambda random, tasks: random.beta(0.3, 0.3, tasks),
    "easy but for a few": lambda random, tasks: np.where(random.random(tasks) < 0.95, 1.0, 0.2),
}
EXPERIMENTS = 600
LEAST = 0.925
"""Three standard deviations of 600 experiments below 0.95."""


@pytest.mark.parametrize("tasks", [5, 10, 20, 100])
@pytest.mark.parametrize("rates", RATES.values(), ids=RATES)
def test_several_samples_of_each_task_hold_the_truth_as_often_as_they_say(rates, tasks):
    random = np.random.default_rng(3)
    population = rates(random, 400_000)
    samples = 4
    chances = {1: np.arange(5) / 4, 4: np.array([0.0, 1.0, 1.0, 1.0, 1.0])}
    for k, chance in chances.items():
        truth, hits = np.mean(1 - (1 - population) ** k), 0
        for _ in range(EXPERIMENTS):
            found = mean_interval(chance[random.binomial(samples, rates(random, tasks))], 0.0, 1.0)
            hits += found.low <= truth <= found.high
        assert hits / EXPERIMENTS >= LEAST


PAIRS = {
    "no difference": lambda random, rates: rates,
    "a little better": lambda random, rates: np.minimum(1.0, rates + 0.1),
    "better on a few": lambda random, rates: np.where(random.random(len(rates)) < 0.1, 1.0, rates),
}


@pytest.mark.parametrize("tasks", [5, 20, 100])
@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("better", PAIRS.values(), ids=PAIRS)
def test_differences_hold_the_truth_as_often_as_they_say(better, samples, tasks):
    random = np.random.default_rng(4)
    population = random.beta(0.5, 0.5, 400_000)
    truth, hits = np.mean(better(random, population) - population), 0
    for _ in range(EXPERIMENTS):
        rates = random.beta(0.5, 0.5, tasks)
        counts = random.binomial(samples, better(random, rates)) - random.binomial(samples, rates)
        found = difference_interval(counts / samples, 1.0)
        hits += found.low <= truth <= found.high
    assert hits / EXPERIMENTS >= LEAST


def test_of_many_tasks_a_difference_is_student_s():
    values = np.random.default_rng(5).normal(0.1, 0.2, size=1000).clip(-1, 1)
    found = difference_interval(values, 1.0)
    low, high = stats.t.interval(0.95, 999, loc=values.mean(), scale=stats.sem(values))
    assert (found.low, found.high) == (pytest.approx(low, abs=0.003), pytest.approx(high, abs=0.003))


def test_an_interval_stays_within_its_range():
    for values in ([1.0], [0.0, 1.0], [-1.0] * 3):
        found = difference_interval(np.array(values), 1.0)
        assert -1.0 <= found.low <= found.value <= found.high <= 1.0
    nothing = mean_interval(np.zeros(4), 0.0, 0.0)
    assert (nothing.value, nothing.low, nothing.high) == (0.0, 0.0, 0.0)
