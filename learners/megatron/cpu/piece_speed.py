"""Decides, piece by piece, whether code of our own or torch computes on this processor: whichever is measured to be faster.

What is fast on one processor may be slow on another. Each piece is measured where it is used first, in a few hundredths of a
second, and the result is kept, so that all ranks of a machine and all later runs do the same.
"""

import logging
import time
from collections.abc import Callable

import msgspec
import torch

from asyncrl.core.process.kept_measurement import kept_measurement

logger = logging.getLogger(__name__)

REPETITIONS = 7
"""Measurements of each of the two ways, which alternate; the shortest counts."""
MARGIN = 1.03
"""Our own code, which passes over memory less often, stays where it is slower by no more than this."""


class PieceSpeed(msgspec.Struct, frozen=True):
    """Seconds that a piece takes in both ways, forward and backward."""

    ours: float
    torchs: float


def ours_is_faster(piece: str, ours: Callable[[], object], torchs: Callable[[], object]) -> bool:
    """Return whether our own code computes the piece at least about as fast as torch.

    Args:
        piece: name of the piece, with its data type and sizes.
        ours, torchs: compute the piece once, in both ways.
    """
    about = (piece, torch.__version__, torch.get_num_threads())
    found = kept_measurement("learner-piece", about, PieceSpeed, lambda: measure(ours, torchs))
    faster = found.ours <= MARGIN * found.torchs
    taken = "our own code" if faster else "torch"
    logger.info("%s: computed by %s (%.3g ms, torch %.3g ms)", piece, taken, 1e3 * found.ours, 1e3 * found.torchs)
    return faster


@torch.enable_grad()
def measure(ours: Callable[[], object], torchs: Callable[[], object]) -> PieceSpeed:
    """Measure both ways in turn, after one call of each that warms up."""
    shortest = []
    for _ in range(1 + REPETITIONS):
        seconds = []
        for way in (ours, torchs):
            started = time.perf_counter()
            way()
            seconds.append(time.perf_counter() - started)
        shortest.append(seconds)
    return PieceSpeed(*(min(of_way) for of_way in zip(*shortest[1:], strict=True)))


def made_values(*shape: int) -> torch.Tensor:
    """Values from -1 to 1 that look like no pattern, and take nothing from torch's random numbers; float32, with a gradient."""
    count = torch.Size(shape).numel()
    return (12.9898 * torch.arange(count, dtype=torch.float32)).sin().view(shape).requires_grad_()
