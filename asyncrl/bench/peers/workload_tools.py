"""The tools of the benchmark's workloads, and the reward of a turn, as plain functions that every trainer can call.

This file imports only the standard library, since both asyncrl and the programs of the peers, in another environment, import it.
What a function returns, and how long it takes, depends on its arguments only.
"""

import hashlib
import math
import random
import time
import zlib
from collections.abc import Iterable
from statistics import NormalDist

WORDS = tuple(consonant + vowel for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou")
"""Short words without meaning; each is one token of the scripted model."""
PAGE_WORDS = 150

MEAN_S = 0.3
SPREAD = 0.8
"""Standard deviation of the logarithm of an ordinary call's duration in seconds."""
OUTLIERS = 50
OUTLIER_S = 5.0
"""Duration of one call in ``OUTLIERS``, in seconds."""


def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: The first integer.
        b: The second integer.
    """
    return a + b


def slow_add(a: int, b: int, c: int) -> int:
    """Add three integers on a machine far away.

    Args:
        a: The first integer.
        b: The second integer.
        c: The third integer.
    """
    time.sleep(call_seconds(a, b, c))
    return a + b + c


def read_page(page: int) -> str:
    """Read a page of the manual.

    Args:
        page: The number of the page.
    """
    return " ".join(random.Random(page).choices(WORDS, k=PAGE_WORDS))


def call_seconds(a: int, b: int, c: int, seed: int = 0) -> float:
    """Duration of :func:`slow_add`: log-normal with mean ``MEAN_S``, but ``OUTLIER_S`` for one call in ``OUTLIERS``."""
    digest = hashlib.sha256(f"{seed} {a} {b} {c}".encode()).digest()
    is_outlier, rank = (int.from_bytes(part, "big") / 2**64 for part in (digest[:8], digest[8:16]))
    if is_outlier < 1 / OUTLIERS:
        return OUTLIER_S
    median = MEAN_S / math.exp(SPREAD**2 / 2)
    return median * math.exp(SPREAD * NormalDist().inv_cdf(min(max(rank, 1e-9), 1 - 1e-9)))


def turn_reward(content: str, arguments: Iterable[object]) -> float:
    """Reward of one turn, 1 or 0: a checksum of its text and its calls' arguments, which looks random."""
    return float(zlib.crc32(repr((content.strip(), [str(argument) for argument in arguments])).encode()) & 1)
