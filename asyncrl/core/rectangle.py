"""A rectangle of one Hugging Face tensor: what a learner rank holds of it, or an engine needs of it."""

import math
from collections.abc import Iterator
from typing import NamedTuple


class Rectangle(NamedTuple):
    """The elements of the tensor ``name`` from index ``start`` on, ``extent`` of them along each dimension."""

    name: str
    start: tuple[int, ...]
    extent: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.extent)

    def shared(self, other: "Rectangle") -> "Rectangle | None":
        """Return the part that both have, of the same tensor; None if there is none."""
        start = tuple(map(max, self.start, other.start))
        ends = (min(a + b, c + d) for a, b, c, d in zip(self.start, self.extent, other.start, other.extent, strict=True))
        extent = tuple(end - begin for end, begin in zip(ends, start, strict=True))
        return Rectangle(self.name, start, extent) if self.name == other.name and all(size > 0 for size in extent) else None

    def without(self, other: "Rectangle") -> "Iterator[Rectangle]":
        """Yield rectangles that together have the elements that ``other`` has not."""
        shared = self.shared(other)
        if shared is None:
            yield self
            return
        start, extent = list(self.start), list(self.extent)
        for axis, (begin, size) in enumerate(zip(shared.start, shared.extent, strict=True)):
            for first, end in ((start[axis], begin), (begin + size, start[axis] + extent[axis])):
                if first < end:
                    yield Rectangle(
                        self.name,
                        (*start[:axis], first, *start[axis + 1 :]),
                        (*extent[:axis], end - first, *extent[axis + 1 :]),
                    )
            start[axis], extent[axis] = begin, size

    def pieces(self, elements: int) -> "Iterator[Rectangle]":
        """Yield the rectangle cut along its first dimension, at most ``elements`` a piece where that is possible."""
        if self.elements <= elements or not self.extent:
            yield self
            return
        (first, *start), (size, *extent) = self.start, self.extent
        step = max(1, elements * size // self.elements)
        for begin in range(0, size, step):
            yield Rectangle(self.name, (first + begin, *start), (min(step, size - begin), *extent))
