"""SplitMix64: pseudo-random 64-bit numbers, each a pure function of its key (Steele, Lea and Flood 2014,
doi:10.1145/2660193.2660195)."""

from typing import Any


def _signed(bits: int) -> int:
    """The number that an int64 tensor takes for these 64 bits; Python's integers do with either."""
    return bits - 2**64 if bits >= 2**63 else bits


STEP = _signed(0x9E3779B97F4A7C15)
"""Number ``n`` of the sequence that ``seed`` begins is ``mixed(seed + n * STEP)``."""
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
WHOLE = (1 << 64) - 1
_33, _34, _37 = WHOLE >> 31, WHOLE >> 30, WHOLE >> 27


def mixed(number: Any, bits: int = WHOLE) -> Any:
    """Map 64-bit numbers to 64-bit numbers, one to one, so that each bit of the result depends on all bits of ``number``.

    Args:
        number: an integer in ``[0, 2**64)``, or an int64 tensor of numbers.
        bits: -1 for a tensor, whose products wrap by themselves.
    """
    number = (number ^ number >> 30 & _34) * _FIRST & bits
    number = (number ^ number >> 27 & _37) * _SECOND & bits
    return number ^ number >> 31 & _33
