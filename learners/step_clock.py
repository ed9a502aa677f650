"""Measures what one rank spends a training step on.

A mark is set wherever the rank goes over to another part, and the time between two marks belongs to the part that the
first began. So the parts add up to the whole. On a GPU, marks are events in the stream that computes, read when the
step is over: setting one does not wait for what was launched before.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

from asyncrl.core.measures.time_split import LearnerTime

if TYPE_CHECKING:
    import torch


class Part(StrEnum):
    """What a rank does in a training step."""

    DATA = "data"
    """Plans and packs micro-batches, and computes advantages; also the exchange of readings with other ranks."""
    FORWARD = "forward"
    """Computes outputs and the loss, of the reference and the proximal policy too."""
    BACKWARD = "backward"
    """Computes gradients and adds them over ranks; where there are pipeline stages, also waits for the others."""
    OPTIMIZER = "optimizer"
    """Computes the gradient's norm, clips it, and updates the weights."""


class StepClock:
    """The parts of one training step after the other. Parts may lie within each other: the innermost counts. Outside
    of a training step nothing is measured.

    Args:
        device: where the model is computed.
    """

    def __init__(self, device: "torch.device") -> None:
        self._on_gpu = device.type == "cuda"
        self._part = Part.DATA
        self._in_step = False
        self._marks: list[tuple[Part, float | torch.cuda.Event]] = []

    def begin(self) -> None:
        """Begin a training step, in the part :attr:`Part.DATA`."""
        self._marks.clear()
        self._in_step = True
        self._mark(Part.DATA)

    @contextmanager
    def part(self, part: Part) -> Iterator[None]:
        """Count the time of the context as ``part``."""
        outer = self._part
        self._mark(part)
        try:
            yield
        finally:
            self._mark(outer)

    def end(self) -> LearnerTime:
        """End the training step. On a GPU, wait until everything launched in it is computed; not for weights on their way."""
        self._mark(Part.DATA)
        self._in_step = False
        if self._on_gpu:
            import torch

            torch.cuda.current_stream().synchronize()
        seconds = dict.fromkeys(Part, 0.0)
        for (part, began), (_, ended) in zip(self._marks, self._marks[1:], strict=False):
            seconds[part] += _between(began, ended)
        self._marks.clear()
        return LearnerTime(**seconds)

    def _mark(self, part: Part) -> None:
        self._part = part
        if not self._in_step:
            return
        if not self._on_gpu:
            self._marks.append((part, time.perf_counter()))
            return
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((part, event))


def _between(began: "float | torch.cuda.Event", ended: "float | torch.cuda.Event") -> float:
    if isinstance(began, float):
        assert isinstance(ended, float)
        return ended - began
    assert not isinstance(ended, float)
    return float(began.elapsed_time(ended)) / 1000
