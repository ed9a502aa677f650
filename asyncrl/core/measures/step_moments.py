"""Sums over the steps of engines, from which the time of a step is fitted to what it computed, by least squares.

Adding two of them gives those of all steps together, so that they travel and are kept as counters are.
"""

from collections.abc import Sequence
from itertools import combinations_with_replacement

import msgspec

from asyncrl.core.measures.counters import Counters

VARIABLES = ("steps", "prompts", "sampled", "context", "seconds", "cpu")
"""What is known of each step: 1, tokens of prompts, requests that sample, tokens that these have behind them, its seconds, and
its processor time in seconds."""

PAIRS = tuple(combinations_with_replacement(VARIABLES, 2))


class StepMoments(Counters, msgspec.Struct, frozen=True):
    """The sum over steps of each product of two of :data:`VARIABLES`.

    Attributes:
        products: by the names of both, with a blank between, in the order of :data:`VARIABLES`; empty without a step.
    """

    products: dict[str, float] = {}

    @classmethod
    def of(cls, sums: Sequence[float]) -> "StepMoments":
        """Return those whose sums are in the order of :data:`PAIRS`."""
        return cls({" ".join(pair): value for pair, value in zip(PAIRS, sums, strict=True)} if sums else {})

    def product(self, one: str, other: str) -> float:
        """Return the sum of ``one * other`` over all steps."""
        first, second = sorted((one, other), key=VARIABLES.index)
        return self.products.get(f"{first} {second}", 0.0)

    def total(self, variable: str) -> float:
        """Return the sum of a variable over all steps."""
        return self.product("steps", variable)


def add_step(sums: list[float], step: Sequence[float]) -> None:
    """Add one step, with the values of :data:`VARIABLES`, to sums in the order of :data:`PAIRS`."""
    place = 0
    for first, value in enumerate(step):
        for other in step[first:]:
            sums[place] += value * other
            place += 1
