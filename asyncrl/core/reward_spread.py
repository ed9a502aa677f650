"""Tells rewards that differ from rewards that are equal up to rounding.

The order in which an environment adds up partial rewards changes the last digit of their sum. A group whose rewards differ only
by that says nothing about better and worse, but dividing by so small a spread would turn it into full-size advantages.
"""

from collections.abc import Collection

SPREAD_TOLERANCE = 1e-9
"""Differences up to this count as rounding. It is relative to the largest number compared, or to 1 if that is larger."""


def has_spread(values: Collection[float]) -> bool:
    """Return whether ``values`` (at least one) are further apart than ``SPREAD_TOLERANCE * max(1, |value|)``.

    Only the smallest and the largest value matter, so it is enough to pass these two.
    """
    lowest, highest = min(values), max(values)
    return highest - lowest > SPREAD_TOLERANCE * max(1.0, abs(lowest), abs(highest))


def reaches(value: float, bound: float) -> bool:
    """Return whether ``value`` is at least ``bound``, or below it only by rounding."""
    return value >= bound or not has_spread((value, bound))
