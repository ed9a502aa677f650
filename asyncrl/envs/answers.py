"""Compares the text of a final answer with the expected one."""

import math
import re

_NUMBER = re.compile(r"(?<![0-9])-?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_RELATIVE, _ABSOLUTE = 1e-6, 1e-9


def is_answer(text: str, expected: float | str) -> bool:
    """Whether ``text`` gives the ``expected`` answer.

    A number is compared with the last number in the text: an integer exactly, any other within a millionth. A text is compared
    with the last line, without spaces around it.
    """
    if isinstance(expected, str):
        return text.strip().rpartition("\n")[2].strip() == expected.strip()
    numbers = _NUMBER.findall(text)
    return bool(numbers) and math.isclose(
        float(numbers[-1].replace(",", "")),
        expected,
        rel_tol=_RELATIVE if isinstance(expected, float) else 0.0,
        abs_tol=_ABSOLUTE,
    )
