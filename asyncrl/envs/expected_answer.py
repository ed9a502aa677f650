"""The expected answer of a task, as data sets have it or lack it."""

import math


def says_nothing(expected: object) -> bool:
    """Whether what is expected is a null, a blank text, or what is not a number in a column of numbers."""
    if isinstance(expected, str):
        return not expected.strip()
    return expected is None or (isinstance(expected, float) and math.isnan(expected))
