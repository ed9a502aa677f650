"""Which source the next task comes from: the shares of the sources, kept as exactly as whole draws can.

Each draw earns every source its share and costs the one that is drawn a whole draw. Of the sources that have earned something,
the one whose next draw is due first is drawn. While shares do not change, the number of draws of a source is within one of its
share of all draws, at every moment (earliest deadline first of Liu and Layland 1973; Baruah et al. 1996 for the bound). All
arithmetic is on integers, so nothing drifts and the same weights give the same order on every machine.
"""

from collections.abc import Sequence

_WHOLE = 1 << 32
"""A whole draw, in the units that credit is counted in."""


class Mixer:
    """Draws among ``count`` sources.

    Attributes:
        credit: what each source has earned and not been drawn for, in 2**-32 draws; sums to 0. The only state.
    """

    def __init__(self, count: int) -> None:
        self.credit = [0] * count

    def draw(self, shares: Sequence[int]) -> int:
        """The index of the source to draw from; one of share 0 is never drawn.

        Args:
            shares: of each source, from :func:`shares_of`.
        """
        self.credit = [credit + share for credit, share in zip(self.credit, shares, strict=True)]
        wanted = [index for index, share in enumerate(shares) if share]
        earned = [index for index in wanted if self.credit[index] > 0]
        # Sources of weight 0 can hold on to all the credit when weights change: then everybody else is drawn ahead of time.
        drawn = min(earned or wanted, key=lambda index: (self._draws_until_due(index, shares[index]), index))
        self.credit[drawn] -= _WHOLE
        return drawn

    def _draws_until_due(self, index: int, share: int) -> int:
        """In 2**-64 draws: integers compare exactly."""
        return ((_WHOLE - self.credit[index]) << 64) // share


def shares_of(weights: Sequence[float]) -> list[int]:
    """Weights as parts of a whole draw, at least one part for each that is not 0.

    Args:
        weights: finite, not negative, not all 0.
    """
    largest = max(weights)  # divided by first: the sum of huge weights is infinite
    total = sum(weight / largest for weight in weights)
    shares = [max(1, int(weight / largest / total * _WHOLE)) if weight else 0 for weight in weights]
    shares[max(range(len(shares)), key=shares.__getitem__)] += _WHOLE - sum(shares)
    return shares
