"""A rectangle of one Hugging Face tensor: what a learner rank holds of it, or an engine needs of it."""

import math
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
