"""Numbers that an answer writes out, and those that are left to compute from what it writes."""

import re
from fractions import Fraction

_VALUE = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)"
_RATIO = rf"[-+]?(?:\\frac(?:\{{{_VALUE}\}}|\d)(?:\{{{_VALUE}\}}|\d)|{_VALUE}/{_VALUE})"
_FRACTION = re.compile(rf"[-+]?\(?{_RATIO}\)?|[-+]?\(\d+\+{_RATIO}\)")
"""A fraction, or a mixed number as :mod:`~asyncrl.envs.rewards.math_forms` writes it."""
_POWER = re.compile(rf"[-+]?\(?(?:{_VALUE}|{_RATIO})\)?\^\{{?{_VALUE}\}}?")
_OPERATION = re.compile(r"[\d)}!](?:[-+*/]|\\(?:cdot|times|div)(?![A-Za-z]))[-+]?[\d.({\\]|[\d)}]\(|\)\d")
"""Numbers to be added, subtracted, multiplied or divided. Where a number is expected, they repeat the question."""
_WRITTEN_OUT = re.compile(r"([-+]?(?:\d+(?:\.\d*)?|\.\d+))(?:\\(?:times|cdot)10\^\{?([-+]?\d{1,3})\}?)?")
_ARITHMETIC = re.compile(r"(?:[-+*/^\d.\s(){}]|\\(?:cdot|times|div|frac)(?![A-Za-z]))+")


def to_be_computed(wanted: str, given: str) -> bool:
    """Whether a number is wanted, and numbers are given from which it would have to be computed.

    A power may be given for any number, and a fraction for one that is no integer.
    """
    exact, given = number_of(wanted), given.replace(" ", "")
    if (exact is None and not _FRACTION.fullmatch(wanted.replace(" ", ""))) or _WRITTEN_OUT.fullmatch(given):
        return False
    if _POWER.fullmatch(given) or (_FRACTION.fullmatch(given) and (exact is None or exact.denominator != 1)):
        return False
    return _FRACTION.fullmatch(given) is not None or _OPERATION.search(given) is not None


def number_of(text: str) -> Fraction | None:
    """A number that is written out, which sympy may round; None if the text is anything else."""
    found = _WRITTEN_OUT.fullmatch(text.replace(" ", ""))
    return Fraction(found[1]) * Fraction(10) ** int(found[2] or 0) if found else None


def is_arithmetic(given: str) -> bool:
    """Whether a text has numbers alone, from which another would have to be computed, whichever is wanted."""
    return _ARITHMETIC.fullmatch(given) is not None and to_be_computed("1/2", given)
