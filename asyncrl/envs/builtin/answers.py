"""Compares the text of a final answer with the expected one."""

import math
import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from asyncrl.envs.stated_answer import stated_answer

_PLAIN = r"-?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_NUMBER = re.compile(rf"(?<![0-9])({_PLAIN})(?:\s*(/|\^|\*\*)\s*\{{?({_PLAIN})\}}?)?")
_RELATIVE, _ABSOLUTE = 1e-6, 1e-9
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]*)")
"""A text that is an integer, as many data sets have it; one with leading zeros or a point may be a name, such as a version."""
_LARGEST = 400
"""Digits before or behind the point beyond which a number is none of ours; Python's floats end at 308."""


def is_answer(text: str, expected: float | str) -> bool:
    """Whether ``text`` gives the ``expected`` answer.

    What the text states counts, see :func:`~asyncrl.envs.stated_answer.stated_answer`. A number, also an integer that is written
    as text, is compared with the last number in it, which may be a fraction ``1/2`` or a power ``10^17``. Any other text is
    compared with its last lines, as many as are expected, without spaces around them.
    """
    text = stated_answer(text)
    if isinstance(expected, str):
        wanted = _lines(expected)
        if _lines(text)[-len(wanted) :] == wanted:
            return True
        if not _INTEGER.fullmatch(expected.strip()):
            return False
        expected = int(expected.replace(",", ""))
    numbers = _NUMBER.findall(text)
    given = _value(*numbers[-1]) if numbers else None
    return given is not None and _same(given, expected)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def same_number(given: str, expected: float) -> bool:
    """Whether a text is the ``expected`` finite number: an integer exactly, any other within a millionth.

    An integer may be written with a point, and with an error of a billionth, as it comes out of a computation.
    """
    number = _exact(given)
    return number is not None and _same(number, expected)


def _same(given: Fraction, expected: float) -> bool:
    if not math.isfinite(expected):
        return False
    allowed = Fraction(_ABSOLUTE)
    if isinstance(expected, float):
        allowed = max(allowed, Fraction(_RELATIVE) * max(abs(given), abs(Fraction(expected))))
    return abs(given - Fraction(expected)) <= allowed


def _value(first: str, operator: str, second: str) -> Fraction | None:
    """The value of a number, a fraction or a power; None if there is none, or one of more digits than anybody means."""
    left, right = _exact(first.replace(",", "")), _exact(second.replace(",", "")) if operator else Fraction(1)
    if left is None or right is None:
        return None
    if operator in ("", "/"):
        return left / right if right else None
    if right.denominator != 1 or abs(right) * math.log10(max(abs(left.numerator), left.denominator, 2)) > _LARGEST:
        return None
    return left**right.numerator if left else None


def _exact(text: str) -> Fraction | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    if not number.is_finite() or number.adjusted() > _LARGEST:
        return None
    return Fraction(number) if number.adjusted() > -_LARGEST else Fraction()
