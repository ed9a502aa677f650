"""The reference policy: a copy of the weights the run began with, in host memory, exchanged with the model's for a forward pass.

A second model would occupy accelerator memory all the time for one forward pass a batch. The exchange copies the weights twice a
batch between host and accelerator, needs no memory beyond the one copy, and runs the reference by the very code that runs the
policy: with equal weights the two log-probabilities are equal to the bit.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class ReferenceWeights:
    """A copy of the parameters as they are now.

    Args:
        parameters: those of this rank's part of the model, which the optimizer writes to.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._held = [parameter.detach().to("cpu", copy=True) for parameter in parameters]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Scope in which the model is the reference. Afterwards the policy's weights are back, to the bit."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for parameter, held in zip(self._parameters, self._held, strict=True):
            current: Tensor = parameter.detach().to("cpu", copy=True)
            parameter.copy_(held)
            held.copy_(current)
