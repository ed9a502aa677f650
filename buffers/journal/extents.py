"""Sets of a file's bytes, kept as sorted extents that neither overlap nor touch."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Extents:
    """A set of bytes. Extents are merged with their neighbours as they are added; adding bytes twice is harmless."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._starts, self._ends, strict=True))

    def add(self, start: int, end: int) -> tuple[int, int]:
        """Add bytes ``[start, end)``, and return the merged extent that they are part of."""
        first = bisect_left(self._ends, start)
        behind = bisect_right(self._starts, end)
        if first < behind:
            start, end = min(start, self._starts[first]), max(end, self._ends[behind - 1])
        self._starts[first:behind] = [start]
        self._ends[first:behind] = [end]
        return start, end

    def covers(self, start: int, end: int) -> bool:
        """Whether every byte of ``[start, end)`` is in the set."""
        at = bisect_right(self._starts, start) - 1
        return start >= end or (at >= 0 and self._ends[at] >= end)

    def gaps(self, end: int) -> list[tuple[int, int]]:
        """List the extents of ``[0, end)`` that are not in the set."""
        starts, ends = [0, *self._ends], [*self._starts, end]
        return [(a, min(b, end)) for a, b in zip(starts, ends, strict=True) if a < min(b, end)]
