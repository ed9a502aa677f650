"""The reference policy: a copy of the weights the run began with, or of another model's, kept in host memory and swapped
into the model for a forward pass.

A second model would occupy accelerator memory all the time for one forward pass per batch. Swapping copies the weights
twice per batch between host and accelerator, needs no memory beyond the one copy, and runs the reference by the very
code that runs the policy: with equal weights, the two log-probabilities are equal to the bit. On a GPU, the copy is in
pinned memory, and the host waits for none of the moves: they and the passes follow each other in one stream.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from asyncrl.device.pinning import HostArena


class ReferenceWeights:
    """A copy of the weights as they are at construction.

    Args:
        weights: those of this rank's part of the model, most of which the optimizer writes to.
        bits: the sum of the bits of the whole model's weights, if it is known.
    """

    def __init__(self, weights: Sequence[torch.Tensor], *, bits: int = 0) -> None:
        self._weights, self.bits = weights, bits
        self._arena = HostArena()
        self._held = self._arena.copies(weights)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context manager within which the model has the reference's weights. Afterwards the policy's weights are back,
        to the bit."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def close(self) -> None:
        """Give the copy up. Does nothing the second time."""
        self._held = []
        self._arena.close()

    @torch.no_grad()
    def _exchange(self) -> None:
        for weight, held in zip(self._weights, self._held, strict=True):
            current = weight.detach().clone()
            weight.copy_(held, non_blocking=True)
            held.copy_(current, non_blocking=True)
