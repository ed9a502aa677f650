"""Systematic sampling with probability proportional to size, in exact integer arithmetic.

``n`` points at equal distances, the first at a random ``start``, are laid over intervals as long as the sizes. What always holds,
for every start: there are exactly ``n`` hits in all, and interval ``i`` is hit ``n * sizes[i] / sum(sizes)`` times, rounded down
or up; over all starts, exactly that often on average (Madow 1949, "On the theory of systematic sampling, II").
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise


def systematic_hits(sizes: Sequence[int], n: int, start: int) -> list[int]:
    """Return how often each interval is hit.

    Args:
        sizes: lengths of the intervals, not negative, not all 0.
        n: number of points.
        start: the first point, in ``[0, sum(sizes))``; intervals are ``n * size`` long and points ``sum(sizes)`` apart.
    """
    distance = sum(sizes)
    before = [-((start - n * end) // distance) for end in accumulate(sizes, initial=0)]
    return [below_end - below_start for below_start, below_end in pairwise(before)]


def inclusion_probabilities(sizes: Sequence[int], n: int) -> list[Fraction]:
    """Return each unit's probability to be in a sample of ``n`` without replacement.

    The probabilities are proportional to size, at most 1 each, and add up to ``n``.

    Sizes are positive, and ``n`` is at most their number. Units whose share would exceed 1 are in every sample, and the others
    share the rest (Särndal, Swensson and Wretman 1992, "Model Assisted Survey Sampling", section 3.6).
    """
    certain: set[int] = set()
    while True:
        left, total = n - len(certain), sum(sizes) - sum(sizes[i] for i in certain)
        capped = {i for i, size in enumerate(sizes) if i not in certain and left * size >= total}
        if not capped:
            return [Fraction(1) if i in certain else Fraction(left * size, total) for i, size in enumerate(sizes)]
        certain |= capped
