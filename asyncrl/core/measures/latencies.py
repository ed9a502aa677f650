"""Durations as a histogram that adds up over places and steps, so that percentiles of the whole can be had.

A percentile of percentiles is none. So every place counts durations in the same buckets, the buckets are added, and percentiles
are read from the sum. Four buckets double a duration, so that a percentile is wrong by at most 9 % (the eighth root of 2).
"""

import math

import msgspec

from asyncrl.core.measures.counters import Counters

SHORTEST_S = 1e-5
"""Lower bound of the first bucket, in seconds. Shorter durations are counted there."""
BUCKETS = 128
"""Number of buckets. The last one begins at about 10 hours, and has everything that takes longer."""
A_DOUBLING = 4
"""Buckets between a duration and its double."""


class Latencies(Counters, msgspec.Struct):
    """A histogram of durations. ``+`` adds those of several places.

    Attributes:
        buckets: how many durations lie in each bucket that has any. Bucket b begins at ``SHORTEST_S * 2 ** (b / A_DOUBLING)``.
    """

    buckets: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """Count one duration."""
        doublings = math.log2(seconds / SHORTEST_S) if seconds > SHORTEST_S else 0.0
        bucket = min(int(A_DOUBLING * doublings), BUCKETS - 1)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self.buckets.values())

    def percentile(self, share: float) -> float:
        """Return the shortest duration, in seconds, that at least ``share`` of all durations do not exceed.

        It is given by the middle of its bucket (the geometric mean of the bounds).

        Raises:
            ValueError: no duration was counted.
        """
        left = share * self.count
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if self.buckets[bucket] and left <= 1e-9:
                return float(SHORTEST_S * 2 ** ((bucket + 0.5) / A_DOUBLING))
        raise ValueError("no duration was counted, so there is no percentile")
