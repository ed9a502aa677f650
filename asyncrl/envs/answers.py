"""Compares the text of a final answer with the expected one."""

import math
import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

_NUMBER = re.compile(r"(?<![0-9])-?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_RELATIVE, _ABSOLUTE = 1e-6, 1e-9
_LARGEST = 400
"""Digits before or behind the point beyond which a number is none of ours; Python's floats end at 308."""


def is_answer(text: str, expected: float | str) -> bool:
    """Whether ``text`` gives the ``expected`` answer.

    A number is compared with the last number in the text. A text is compared with the last line, without spaces around it.
    """
    if isinstance(expected, str):
        return text.strip().rpartition("\n")[2].strip() == expected.strip()
    numbers = _NUMBER.findall(text)
    return bool(numbers) and same_number(numbers[-1].replace(",", ""), expected)


def same_number(given: str, expected: float) -> bool:
    """Whether a text is the ``expected`` finite number: an integer exactly, any other within a millionth.

    An integer may be written with a point, and with an error of a billionth, as it comes out of a computation.
    """
    try:
        number = Decimal(given)
    except InvalidOperation:
        return False
    if not number.is_finite() or not math.isfinite(expected) or number.adjusted() > _LARGEST:
        return False
    exact = Fraction(number) if number.adjusted() > -_LARGEST else Fraction()
    allowed = Fraction(_ABSOLUTE)
    if isinstance(expected, float):
        allowed = max(allowed, Fraction(_RELATIVE) * max(abs(exact), abs(Fraction(expected))))
    return abs(exact - Fraction(expected)) <= allowed
