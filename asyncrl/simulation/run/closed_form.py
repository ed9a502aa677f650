"""The mean staleness of a run in closed form, for constant and for exponential durations: docs/how-to/planning.md derives it.

The run: a pace that is always used up, engines with room for every episode, publications that take no time, and batches so large
that a random number of episodes is its mean. An episode samples some tokens when it begins and the others when it ends.
"""

import math


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
