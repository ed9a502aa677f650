"""SplitMix64: pseudo-random 64-bit numbers, each a pure function of its key (Steele, Lea and Flood 2014,
doi:10.1145/2660193.2660195)."""

from typing import Any

STEP = 0x9E3779B97F4A7C15
"""Number ``n`` of the sequence that ``seed`` begins is ``mixed(seed + n * STEP)``, modulo 2**64."""
WHOLE = (1 << 64) - 1
"""All 64 bits."""


def mixed(number: Any) -> Any:
    """Map 64-bit numbers to 64-bit numbers, one to one, so that each bit of the result depends on all bits of ``number``.

    Args:
        number: an integer in ``[0, 2**64)``, or an array of uint64.
    """
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & WHOLE
    number = (number ^ number >> 27) * 0x94D049BB133111EB & WHOLE
    return number ^ number >> 31
