"""Divides work among as many threads as torch uses."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch

_LEAST_NUMBERS = 1 << 16
"""Numbers of a thread's part: with fewer, its start would take longer than it saves."""


def in_threads(count: int, numbers: int, compute: Callable[[int, int, int], None]) -> None:
    """Call ``compute`` for parts of ``count`` items, each in a thread of its own, with the part's number, its first item and the
    one after its last. It helps only code that releases the GIL. All threads have ended on return; an exception of one is raised
    here.

    Args:
        numbers: how many numbers all items have; for few, there is one part.
    """
    parts = max(1, min(torch.get_num_threads(), count, numbers // _LEAST_NUMBERS))
    (own, own_bounds), *others = enumerate(pairwise(count * part // parts for part in range(parts + 1)))
    if not others:
        compute(own, *own_bounds)
        return
    with ThreadPoolExecutor(len(others), "rows") as pool:
        running = [pool.submit(compute, number, *bounds) for number, bounds in others]
        compute(own, *own_bounds)
    for each in running:
        each.result()
