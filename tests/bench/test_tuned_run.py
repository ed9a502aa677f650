"""Runs that tune themselves in simulated time: from a bad start near the best fixed setting, while episodes become longer."""

import pytest

from asyncrl.bench import tune
from asyncrl.bench.tuned_run import ENGINES
from asyncrl.core.recipe.tune import DEPTH
from asyncrl.core.tuning.moves import Judged, Moved

STEPS, LAST = 200, 40
MADE = tune.recipe(every=6)


@pytest.fixture(scope="module")
def best() -> float:
    """The rate of the fastest fixed setting: the largest, as ``asyncrl bench tune`` shows."""
    return tune.fixed(MADE, {ENGINES: 4, DEPTH: 4}, steps=24)


@pytest.mark.parametrize(("seed", "kill_at"), [(0, None), (1, 2), (3, 3)], ids=["whole", "killed before", "killed after"])
def test_a_tuned_run_ends_near_the_best_fixed_setting(best: float, seed: int, kill_at: int | None) -> None:
    run, seen, killed = tune.tuned(MADE, seed, STEPS, kill_at)
    assert bool(killed) == (kill_at is not None)
    last = seen[-LAST:]
    assert sum(step.tokens for step in last) / sum(step.seconds for step in last) > 0.85 * best
    for setting in run.settings:
        assert all(1 <= value <= 4 for value in setting.values())
    assert max(step.staleness_mean for step in seen) <= 4
    moves, judged = (sum(isinstance(line, kind) for line in run.lines) for kind in (Moved, Judged))
    assert moves - judged in (0, 1)
    if kill_at is not None:
        (resumed,) = [line for line in run.lines if isinstance(line, Judged)][kill_at - 1 : kill_at]
        made = seed % 4 > 1
        assert (resumed.why == "the run ended before it was made") == (not made)
