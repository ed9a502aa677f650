"""Mixes task sources: decides which source the next task comes from, so that each gets its share of the draws.

Each draw gives every source its share as credit, and takes a whole draw from the credit of the source that is drawn. Among the
sources with credit, the one whose next draw is due first is drawn. While shares do not change, the number of draws of a source is
always within one of its share of all draws (earliest deadline first of Liu and Layland 1973; Baruah et al. 1996 for the bound).
All arithmetic is on integers, so nothing drifts, and the same weights give the same order on every machine.
"""

from collections.abc import Sequence

_WHOLE = 1 << 32
"""One draw, in the units of credit."""


class Mixer:
    """Draws among ``count`` sources.

    Attributes:
        credit: credit of each source, in units of 2**-32 draws; sums to 0. This is the only state.
    """

    def __init__(self, count: int) -> None:
        self.credit = [0] * count

    def draw(self, shares: Sequence[int]) -> int:
        """Return the index of the source to draw from. A source with share 0 is never drawn.

        Args:
            shares: share of each source, from :func:`shares_of`.
        """
        self.credit = [credit + share for credit, share in zip(self.credit, shares, strict=True)]
        wanted = [index for index, share in enumerate(shares) if share]
        earned = [index for index in wanted if self.credit[index] > 0]
        # After a change of weights, sources of weight 0 may hold all the credit; then the others are drawn ahead of time.
        drawn = min(earned or wanted, key=lambda index: (self._draws_until_due(index, shares[index]), index))
        self.credit[drawn] -= _WHOLE
        return drawn

    def _draws_until_due(self, index: int, share: int) -> int:
        """Return how soon the source's next draw is due, in units of 2**-64 draws, which keeps it an exact integer."""
        return ((_WHOLE - self.credit[index]) << 64) // share


def shares_of(weights: Sequence[float]) -> list[int]:
    """Turn weights (finite, not negative, not all 0) into integer parts of a draw; those above 0 get at least 1."""
    largest = max(weights)  # divide by this first, as the sum of huge weights is infinite
    total = sum(weight / largest for weight in weights)
    shares = [max(1, int(weight / largest / total * _WHOLE)) if weight else 0 for weight in weights]
    shares[max(range(len(shares)), key=shares.__getitem__)] += _WHOLE - sum(shares)
    return shares
