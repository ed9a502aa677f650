"""Compares the text of a final answer with the expected one."""

import math
import re

_NUMBER = re.compile(r"(?<![0-9])-?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_RELATIVE, _ABSOLUTE = 1e-6, 1e-9


def is_answer(text: str, expected: float | str) -> bool:
    """Whether ``text`` gives the ``expected`` answer.

    A number is compared with the last number in the text. A text is compared with the last line, without spaces around it.
    """
    if isinstance(expected, str):
        return text.strip().rpartition("\n")[2].strip() == expected.strip()
    numbers = _NUMBER.findall(text)
    return bool(numbers) and same_number(float(numbers[-1].replace(",", "")), expected)


def same_number(given: float, expected: float) -> bool:
    """Whether a finite number is the ``expected`` one: an integer exactly, any other within a millionth."""
    relative = _RELATIVE if isinstance(expected, float) else 0.0
    return math.isfinite(given) and math.isclose(given, expected, rel_tol=relative, abs_tol=_ABSOLUTE)
