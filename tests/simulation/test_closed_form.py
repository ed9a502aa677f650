"""The modelled run has the mean staleness that follows in closed form, for constant and for exponential durations.

docs/how-to/planning.md derives it, for a pace that is always used up, engines with room for every episode, publications that take
no time, and batches so large that a random number of episodes is its mean. An episode samples some tokens when it begins and the
others when it ends.
"""

import math

import msgspec
import pytest

from asyncrl.run.recipe.compose import compose
from asyncrl.simulation.episodes import ModelEpisode, ModelEpisodes, ModelTurn
from asyncrl.simulation.modelled_run import ModelledRun
from asyncrl.simulation.rates import EngineRates, LearnerRates, PublicationRates, Rate, Rates

STEPS = 60
MANY = 96
"""Groups of a training step, so many that what is drawn at random is nearly as in the mean. Equal ones need no number."""
FIRST, LAST = 3, 2
"""Tokens that an episode samples when it begins, and when it ends."""


def cycle_constant(depth: int, step_s: float, duration_s: float) -> float:
    """Seconds from publication to publication, where every episode takes ``duration_s``."""
    return max(step_s, (duration_s + step_s) / (depth + 1))


def cycle_exponential(depth: int, step_s: float, mean_s: float) -> float:
    """Seconds from publication to publication, where durations are exponential with mean ``mean_s``; ``depth`` at least 1."""
    return max(step_s, mean_s * math.log1p(math.exp(step_s / mean_s) / depth))


def staleness_constant(depth: int, step_s: float, duration_s: float, at_end: float) -> float:
    """Mean staleness of tokens, of which the share ``at_end`` is sampled when an episode ends.

    Where the learner waits, batches that begin together stay together: of the ``depth + 1`` publications of a round all but one
    come a training step after the one before.
    """
    waits = duration_s > depth * step_s
    meanwhile = depth * depth / (depth + 1) if waits else math.floor(duration_s / step_s)
    return depth - at_end * meanwhile


def staleness_exponential(depth: int, step_s: float, mean_s: float, at_end: float) -> float:
    """Mean staleness of tokens, of which the share ``at_end`` is sampled when an episode ends."""
    return depth - at_end / math.expm1(cycle_exponential(depth, step_s, mean_s) / mean_s)


def run(depth: int, step_s: float, durations: list[float], seed: int = 0, groups: int = 8):
    """A run whose groups have two episodes of the same duration."""
    keys = ["batch.group_size=2", f"batch.groups_per_step={groups}", f"buffer.pipeline_depth={depth}", "buffer.max_staleness=64"]
    recipe = compose("quickstart", [*keys, "generators.count=1", "generators.max_running=4096", "evaluation.every=1000"])
    short = Rate(1e-7, "nearly nothing")
    rates = Rates(
        engine=EngineRates(step=short, request=short, prompt_token=short),
        learner=LearnerRates(step=Rate(step_s, "given"), token=Rate(0.0, "given")),
        publication=PublicationRates(write=short, move=short, pause=short),
    )
    episodes = [[ModelEpisode((ModelTurn(8, FIRST, seconds), ModelTurn(4, LAST)))] * 2 for seconds in durations]
    return ModelledRun(recipe, rates, ModelEpisodes(episodes), seed=seed, steps=STEPS).run()


@pytest.mark.parametrize(
    ("depth", "step_s", "duration_s"),
    [(1, 1.0, 0.4), (2, 1.0, 1.5), (4, 1.0, 3.3), (2, 1.0, 7.3), (3, 0.5, 11.0), (1, 1.0, 30.0)],
)
def test_constant_durations(depth: int, step_s: float, duration_s: float):
    outcome = run(depth, step_s, [duration_s])
    share = LAST / (FIRST + LAST)
    assert outcome.step_mean == pytest.approx(cycle_constant(depth, step_s, duration_s), rel=1e-3)
    assert outcome.staleness_mean == pytest.approx(staleness_constant(depth, step_s, duration_s, share), abs=0.02)


@pytest.mark.parametrize(
    ("depth", "step_s", "mean_s"), [(2, 1.0, 0.3), (4, 1.0, 2.0), (2, 1.0, 4.0), (1, 0.2, 5.0), (8, 1.0, 6.0)]
)
def test_exponential_durations(depth: int, step_s: float, mean_s: float):
    quantiles = [-mean_s * math.log1p(-(each + 0.5) / 2000) for each in range(2000)]
    share = LAST / (FIRST + LAST)
    outcomes = [run(depth, step_s, quantiles, seed, MANY) for seed in range(2)]
    for outcome in outcomes:
        assert outcome.step_mean == pytest.approx(cycle_exponential(depth, step_s, mean_s), rel=0.06)
        assert outcome.staleness_mean == pytest.approx(staleness_exponential(depth, step_s, mean_s, share), abs=0.1)


def test_staleness_is_zero_without_depth():
    outcome = run(0, 1.0, [0.5, 2.0, 3.0], groups=MANY)
    assert outcome.staleness_mean == 0.0
    assert outcome.step_mean == pytest.approx(4.0, rel=1e-3)


def test_a_run_is_a_pure_function_of_its_arguments():
    one, other = (run(2, 1.0, [0.5, 2.0, 7.0], seed=3) for _ in range(2))
    assert msgspec.json.encode(one) == msgspec.json.encode(other)
    assert msgspec.json.encode(run(2, 1.0, [0.5, 2.0, 7.0], seed=4)) != msgspec.json.encode(one)
