"""Sums, means and maxima over the rows, or turns, that packed tokens belong to, without padding and without a loop over
rows."""

import msgspec
import torch
from torch import Tensor


class Segments(msgspec.Struct, frozen=True):
    """A partition of ``n`` tokens into segments.

    Attributes:
        index: int64 [n], the segment of each token.
        count: number of segments; those above the largest index are empty.
    """

    index: Tensor
    count: int

    def to(self, device: torch.device, *, non_blocking: bool) -> "Segments":
        """This partition, copied to ``device``."""
        return Segments(self.index.to(device, non_blocking=non_blocking), self.count)

    def sums(self, values: Tensor) -> Tensor:
        """[count], the sum of each segment's ``values`` ([n]); 0 for an empty segment."""
        return values.new_zeros(self.count).index_add(0, self.index, values)

    def means(self, values: Tensor, chosen: Tensor) -> Tensor:
        """[count], the mean of ``values`` ([n]) over each segment's ``chosen`` tokens (bool [n]); 0 where none is
        chosen."""
        number = self.sums(chosen.to(values.dtype))
        return self.sums(torch.where(chosen, values, 0.0)) / number.clamp(min=1.0)

    def maxima(self, values: Tensor, chosen: Tensor) -> Tensor:
        """[count], the largest of ``values`` ([n]) over each segment's ``chosen`` tokens; minus infinity where none is
        chosen."""
        lowest = values.new_full((self.count,), -torch.inf)
        return lowest.scatter_reduce(0, self.index, torch.where(chosen, values, -torch.inf), "amax")
