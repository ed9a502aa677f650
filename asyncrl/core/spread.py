"""Tells rewards that differ from rewards that are equal up to rounding.

The order in which an environment adds up partial rewards changes the last digit of their sum. A group whose rewards differ only
by that says nothing about better and worse, but dividing its spread by itself would make full-size advantages of it.
"""

from collections.abc import Collection

SPREAD_TOLERANCE = 1e-9
"""Relative to the largest number in question, or to 1 if that is larger."""


def has_spread(values: Collection[float]) -> bool:
    """Whether ``values`` (at least one; their extremes will do) are further apart than ``SPREAD_TOLERANCE * max(1, |value|)``."""
    lowest, highest = min(values), max(values)
    return highest - lowest > SPREAD_TOLERANCE * max(1.0, abs(lowest), abs(highest))


def reaches(value: float, bound: float) -> bool:
    """Whether ``value`` is at least ``bound``, or short of it by no more than rounding."""
    return value >= bound or not has_spread((value, bound))
